"""From logits to a token for each request, and its log probabilities.

The order is vLLM V1's (docs.vllm.ai, `vllm.v1.sample.sampler`, 0.22): a grammar's mask; log probabilities of
the model itself; allowed tokens; bad words; end tokens before `min_tokens`; logit bias; penalties for
repetition, frequency and presence; then the likeliest token if the request is greedy, else temperature,
`min_p`, `top_k`, `top_p` and a random choice. A request with none of these costs one argmax.
"""
