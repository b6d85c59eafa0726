"""KV blocks: the pool, the prefix cache and the events that describe them."""
