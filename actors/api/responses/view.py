"""What a client sees of one choice: its deltas, with what else was asked for."""

from dataclasses import dataclass

from actors.api.bodies.shown import UsageWanted
from actors.api.choices import Choice
from actors.api.responses.logprobs import Json, Logprobs, prompt_logprobs
from actors.api.responses.token_strings import TokenTexts
from actors.kernel.stream import Delta


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request wants to see beside the new text.

    `logprobs` and `prompt_logprobs` count the likeliest tokens to be listed, None for none at all.
    `echoes` are the texts that come before those of each prompt's choices, None where none do; with
    `only_echo` nothing else is shown. `prompt_texts` are the prompts as the model reads them, if wanted.
    """

    usage: UsageWanted = "never"
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    tokens_as_ids: bool = False
    token_ids: bool = False
    echoes: tuple[str, ...] | None = None
    only_echo: bool = False
    prompt_texts: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether a chunk in the middle of a stream holds text alone."""
        return self.logprobs is None and not self.token_ids


class ChoiceView:
    """One choice as its client sees it; `codec` gives tokens their texts, if there is one."""

    def __init__(self, choice: Choice, wanted: Wanted, codec: TokenTexts | None) -> None:
        self.choice = choice
        self.wanted = wanted
        self.has_begun = False
        self._codec = codec
        has_logprobs = wanted.logprobs is not None and codec is not None
        self._logprobs = (
            Logprobs(codec, wanted.logprobs, wanted.tokens_as_ids)
            if has_logprobs and codec is not None and wanted.logprobs is not None
            else None
        )

    @property
    def prompt_ids(self) -> list[int] | None:
        """The prompt's tokens, if they were asked for."""
        return list(self.choice.asked.prompt_token_ids) if self.wanted.token_ids else None

    @property
    def prompt_text(self) -> str | None:
        """The prompt as the model reads it, if it was asked for."""
        texts = self.wanted.prompt_texts
        return texts[self.choice.asked.index] if texts else None

    def token_ids(self, delta: Delta) -> list[int] | None:
        """The new tokens, if they were asked for."""
        return list(delta.token_ids) if self.wanted.token_ids else None

    def text(self, delta: Delta, is_first: bool) -> str:
        """The new text, after what is echoed."""
        echoes = self.wanted.echoes
        echo = echoes[self.choice.asked.index] if echoes is not None and is_first else ""
        return echo if self.wanted.only_echo else echo + delta.text

    def completion_logprobs(self, delta: Delta, is_first: bool) -> Json | None:
        """Those of the new tokens, after those of the prompt if it is echoed."""
        if self._logprobs is None:
            return None
        echoed = delta.prompt_logprobs if is_first and self.wanted.echoes is not None else ()
        new = () if self.wanted.only_echo else delta.logprobs
        return self._logprobs.completion(self.choice.asked.prompt_token_ids, echoed, new)

    def chat_logprobs(self, delta: Delta) -> Json | None:
        """Those of the new tokens."""
        return None if self._logprobs is None else self._logprobs.chat(delta.logprobs)

    def prompt_logprobs(self, delta: Delta) -> list[Json | None] | None:
        """Those of the prompt's tokens, if they were asked for."""
        if self.wanted.prompt_logprobs is None or self._codec is None:
            return None
        return prompt_logprobs(self._codec, delta.prompt_logprobs)
