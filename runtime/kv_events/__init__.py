"""KV events over ZMQ, as vLLM publishes them: the prefix cache of each engine, for routers."""
