"""KV events over ZMQ, as vLLM publishes them: what each engine's prefix cache holds, for routers to know."""
