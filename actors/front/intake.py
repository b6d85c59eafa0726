"""What becomes of a wish at the door: a `Submit`, or a refusal that says why and what would do.

Tokenise, check against the context and the vocabulary, hash the prompt's full blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from actors.clock import now_s
from actors.config import EngineConfig
from actors.core.kv_cache import BlockHasher
from actors.messages import Capacity, ChatMessage, Generate, Refused, Submit

TOO_LONG = "context_length_exceeded"


class TokenDecoder(Protocol):
    """Turns one request's tokens into text, one after another."""

    def step(self, token_id: int) -> str:
        """The text that this token completes; empty in the middle of a character."""
        ...

    def flush(self) -> str:
        """What is left of a character that the last token cut off."""
        ...


class Tokenizer(Protocol):
    """Text to tokens and back."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Tokens of a conversation; raises ValueError if the model has no chat template for it."""
        ...

    def decoder(self, prompt_ids: Sequence[int]) -> TokenDecoder: ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What AsyncLLM must know of the model; nothing where tokens are only counted.

    `stop_token_ids` are further end tokens beside `eos_token_id`.
    """

    eos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    vocab_size: int | None = None


class Intake:
    """Turns wishes into requests for the engine; keeps nothing of them."""

    __slots__ = ("_config", "_hash_block", "_limit_tokens", "_model", "tokenizer")

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        model: ModelFacts,
        hash_block: BlockHasher | None,
    ) -> None:
        self._config = config
        self._model = model
        self._hash_block = hash_block if config.scheduler.enable_prefix_caching else None
        self._limit_tokens = config.scheduler.max_model_len
        """The most tokens, prompt and answer, that a request may come to."""
        self.tokenizer = tokenizer

    def connect(self, capacity: Capacity) -> None:
        """Learn of a replica: no request may outgrow its KV cache."""
        room = (capacity.num_blocks - 1) * self._config.scheduler.block_size
        self._limit_tokens = min(self._limit_tokens, room)

    def submit(self, wish: Generate, name: str) -> Submit | Refused:
        """The request that `wish` is to the engine, under the id `name`."""
        prompt = self._tokenise(wish)
        if isinstance(prompt, Refused):
            return prompt
        num_tokens = prompt if isinstance(prompt, int) else len(prompt)
        refused = self._check(wish, num_tokens)
        if refused is not None:
            return refused
        return self._submit(wish, name, None if isinstance(prompt, int) else prompt, num_tokens)

    def _tokenise(self, wish: Generate) -> tuple[int, ...] | int | Refused:
        """The prompt's tokens, or their number where tokens are only counted."""
        prompt = wish.prompt
        if isinstance(prompt, int):
            if self._model.vocab_size is None:
                return prompt
            return Refused("a number of tokens is no prompt for a real model", param="prompt")
        if isinstance(prompt, str):
            if self.tokenizer is None:
                return Refused("there is no tokenizer: give token ids", param="prompt")
            return tuple(self.tokenizer.encode(prompt))
        if prompt and isinstance(prompt[0], ChatMessage):
            if self.tokenizer is None:
                return Refused("there is no tokenizer: give token ids", param="messages")
            try:
                return tuple(self.tokenizer.encode_chat(prompt))
            except ValueError as error:
                return Refused(str(error), param="messages")
        tokens: tuple[int, ...] = prompt  # type: ignore[assignment]
        vocab_size = self._model.vocab_size
        for token in tokens:
            if token < 0 or (vocab_size is not None and token >= vocab_size):
                return Refused(
                    f"token id {token} is not in the vocabulary (0 to {(vocab_size or 0) - 1})",
                    param="prompt",
                )
        return tokens

    def _check(self, wish: Generate, num_tokens: int) -> Refused | None:
        """Why the request cannot be served, if so."""
        param = "messages" if wish.prompt and _is_chat(wish.prompt) else "prompt"
        if num_tokens < 1:
            return Refused("the prompt is empty: give at least one token", param=param)
        limit, max_tokens = self._limit_tokens, wish.sampling.max_tokens
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

    def _submit(self, wish: Generate, name: str, tokens: tuple[int, ...] | None, num_tokens: int) -> Submit:
        sampling = wish.sampling
        if self._model.stop_token_ids and not sampling.ignore_eos:
            stops = sampling.stop_token_ids + self._model.stop_token_ids
            sampling = replace(sampling, stop_token_ids=stops)
        block_hashes = wish.block_hashes
        if tokens is not None and self._hash_block is not None and block_hashes is None:
            block_hashes = self._hash_prompt(tokens, wish.cache_salt)
        return Submit(
            request_id=name,
            arrival_s=now_s(),
            num_prompt_tokens=num_tokens,
            max_tokens=sampling.max_tokens or self._limit_tokens - num_tokens,
            prompt_token_ids=tokens,
            block_hashes=block_hashes,
            sampling=sampling,
            eos_token_id=self._model.eos_token_id,
            priority=wish.priority,
            cache_salt=wish.cache_salt,
            tenant=wish.tenant,
            slo_ttft_s=wish.slo_ttft_s,
            predicted_tokens=wish.predicted_tokens,
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
