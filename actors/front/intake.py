"""What becomes of a Generate: a `Submit`, or a refusal that says why and what would do.

Tokenise, check against the context and the vocabulary, hash the prompt's full blocks.
"""

from dataclasses import replace

from actors.clock import now_s
from actors.config import EngineConfig
from actors.core.kv_cache import BlockHasher
from actors.front.codec import TextCodec, Vocabulary
from actors.messages import Capacity, ChatMessage, Generate, Refused, Submit

TOO_LONG = "context_length_exceeded"


class Intake:
    """Turns Generates into Submits for the engine; keeps nothing of them."""

    __slots__ = ("_config", "_hash_block", "_limit_tokens", "_vocabulary", "codec")

    def __init__(
        self,
        config: EngineConfig,
        codec: TextCodec | None,
        vocabulary: Vocabulary,
        hash_block: BlockHasher | None,
    ) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._hash_block = hash_block if config.scheduler.enable_prefix_caching else None
        self._limit_tokens = config.scheduler.max_model_len
        """The most tokens, prompt and answer, that a request may come to."""
        self.codec = codec

    def connect(self, capacity: Capacity) -> None:
        """Learn of a replica: no request may outgrow its KV cache."""
        room = (capacity.num_blocks - 1) * self._config.scheduler.block_size
        self._limit_tokens = min(self._limit_tokens, room)

    def submit(self, generate: Generate, request_id: str) -> Submit | Refused:
        """The request that `generate` is to the engine, under the id `request_id`."""
        prompt = self._tokenise(generate)
        if isinstance(prompt, Refused):
            return prompt
        num_tokens = prompt if isinstance(prompt, int) else len(prompt)
        refused = self._check(generate, num_tokens)
        if refused is not None:
            return refused
        return self._submit(generate, request_id, None if isinstance(prompt, int) else prompt, num_tokens)

    def _tokenise(self, generate: Generate) -> tuple[int, ...] | int | Refused:
        """The prompt's tokens, or their number where tokens are only counted."""
        prompt = generate.prompt
        if isinstance(prompt, int):
            if self._vocabulary.size is None:
                return prompt
            return Refused("a number of tokens is no prompt for a real model", param="prompt")
        if isinstance(prompt, str):
            if self.codec is None:
                return Refused("there is no tokenizer: give token ids", param="prompt")
            return tuple(self.codec.encode(prompt))
        if prompt and isinstance(prompt[0], ChatMessage):
            if self.codec is None:
                return Refused("there is no tokenizer: give token ids", param="messages")
            try:
                return tuple(self.codec.encode_chat(prompt))
            except ValueError as error:
                return Refused(str(error), param="messages")
        tokens: tuple[int, ...] = prompt  # type: ignore[assignment]
        size = self._vocabulary.size
        for token in tokens:
            if token < 0 or (size is not None and token >= size):
                return Refused(
                    f"token id {token} is not in the vocabulary (0 to {(size or 0) - 1})", param="prompt"
                )
        return tokens

    def _check(self, generate: Generate, num_tokens: int) -> Refused | None:
        """Why the request cannot be served, if so."""
        param = "messages" if generate.prompt and _is_chat(generate.prompt) else "prompt"
        if num_tokens < 1:
            return Refused("the prompt is empty: give at least one token", param=param)
        limit, max_tokens = self._limit_tokens, generate.sampling.max_tokens
        is_context = limit == self._config.scheduler.max_model_len
        what = f"the model's context of {limit}" if is_context else f"a KV cache of {limit} tokens"
        if num_tokens >= limit:
            return Refused(
                f"the prompt has {num_tokens} tokens, but {what} must hold it and at least one"
                " more: shorten it",
                param=param,
                code=TOO_LONG,
            )
        if max_tokens is not None and max_tokens < 1:
            return Refused(f"max_tokens is {max_tokens}: ask for at least one token", param="max_tokens")
        if max_tokens is not None and num_tokens + max_tokens > limit:
            return Refused(
                f"the prompt's {num_tokens} tokens and max_tokens {max_tokens} exceed {what}: ask"
                f" for at most {limit - num_tokens}",
                param="max_tokens",
                code=TOO_LONG,
            )
        return None

    def _submit(
        self, generate: Generate, request_id: str, tokens: tuple[int, ...] | None, num_tokens: int
    ) -> Submit:
        sampling = generate.sampling
        if self._vocabulary.stop_token_ids and not sampling.ignore_eos:
            stops = sampling.stop_token_ids + self._vocabulary.stop_token_ids
            sampling = replace(sampling, stop_token_ids=stops)
        block_hashes = generate.block_hashes
        if tokens is not None and self._hash_block is not None and block_hashes is None:
            block_hashes = self._hash_prompt(tokens, generate.cache_salt)
        return Submit(
            request_id=request_id,
            arrival_s=now_s(),
            num_prompt_tokens=num_tokens,
            max_tokens=sampling.max_tokens or self._limit_tokens - num_tokens,
            prompt_token_ids=tokens,
            block_hashes=block_hashes,
            sampling=sampling,
            eos_token_id=self._vocabulary.eos_token_id,
            priority=generate.priority,
            cache_salt=generate.cache_salt,
            tenant=generate.tenant,
            slo_ttft_s=generate.slo_ttft_s,
            predicted_tokens=generate.predicted_tokens,
        )

    def _hash_prompt(self, tokens: tuple[int, ...], salt: str | None) -> tuple[object, ...]:
        assert self._hash_block is not None
        keys: list[object] = []
        size = self._config.scheduler.block_size
        for start in range(0, len(tokens) - size + 1, size):
            parent = keys[-1] if keys else None
            keys.append(self._hash_block(parent, tokens[start : start + size], salt))
        return tuple(keys)


def _is_chat(prompt: object) -> bool:
    return isinstance(prompt, tuple) and isinstance(prompt[0], ChatMessage)
