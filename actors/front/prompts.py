"""Conversion of a prompt and its parameters to tokens, or to a refusal that names the field.

Text and conversations are tokenized; token ids are checked against the vocabulary; a mere number of tokens is
kept. A prompt to be truncated is first read in full. Bad words become their tokens.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from sundog.actors.core.params.sampling import Constraint, Sampling
from sundog.actors.front.codec import GrammarChecker, TextCodec, TooManyTokens, Vocabulary
from sundog.actors.front.foreign import ForeignFailure
from sundog.actors.messages import ChatMessage, Generate, Reading, Refused
from sundog.actors.messages.client import Prompt

Spelling = tuple[int, ...]


def spellings(words: Iterable[str], encode: Callable[[str], list[int]]) -> tuple[Spelling, ...]:
    """Return the token sequences of the words; ValueError if one has no tokens."""
    found: dict[Spelling, None] = {}
    for word in words:
        bare = word.lstrip()
        plain, spaced = tuple(encode(bare)), tuple(encode(f" {bare}"))
        if not plain:
            raise ValueError(f"bad_words has {word[:40]!r}, of which no token is made: leave it out")
        found[plain] = None
        if spaced and spaced[0] != plain[0] and len(spaced) == len(plain):
            found[spaced] = None
    return tuple(found)


def resolved(sampling: Sampling, codec: TextCodec | None, vocabulary: Vocabulary) -> Sampling | Refused:
    """Return bad words as tokens, -1 as the vocabulary's size, and the model's own end tokens among the
    stops.
    """
    if sampling.bad_words:
        if codec is None:
            return Refused("there is no tokenizer: bad_words cannot be used", param="bad_words")
        try:
            words = spellings(sampling.bad_words, codec.encode_plain)
        except ForeignFailure as panic:
            return Refused(f"the tokenizer fails at bad_words ({panic})", param="bad_words")
        except UnicodeEncodeError:
            return Refused("bad_words has half of a surrogate pair: send whole characters", param="bad_words")
        except ValueError as refusal:
            return Refused(str(refusal), param="bad_words")
        sampling = replace(sampling, bad_words_token_ids=words)
    if sampling.constraint is not None:
        refused = _check_grammar(sampling.constraint, vocabulary.grammars)
        if refused is not None:
            return refused
    size = vocabulary.size
    if size is not None and sampling.logprobs == -1:
        sampling = replace(sampling, logprobs=size)
    if size is not None and sampling.prompt_logprobs == -1:
        sampling = replace(sampling, prompt_logprobs=size)
    if vocabulary.stop_token_ids and not sampling.ignore_eos:
        sampling = replace(sampling, stop_token_ids=sampling.stop_token_ids + vocabulary.stop_token_ids)
    return sampling


def _check_grammar(constraint: Constraint, grammars: GrammarChecker | None) -> Refused | None:
    param = constraint.param
    if grammars is None:
        return Refused(f"{param} is not supported: no model is here that could keep to it", param=param)
    try:
        grammars.check(constraint)
    except ValueError as reason:
        return Refused(f"{param} cannot be used: {reason}", param=param)
    return None


log = logging.getLogger("sundog.front")

TOO_LONG = "context_length_exceeded"
NO_CODEC = "there is no tokenizer: give token ids"

Tokens = tuple[int, ...]


def effort(generate: Generate) -> int:
    """Return the work of reading a prompt: characters to tokenize, or tokens to check and hash.

    Either takes about 0.1 µs; a bad word is tokenized twice, at 10 µs each.
    """
    prompt, sampling = generate.prompt, generate.sampling
    lists = 0
    if sampling.bad_words or sampling.logit_bias or sampling.allowed_token_ids:
        lists = 200 * len(sampling.bad_words) + len(sampling.logit_bias)
        lists += len(sampling.allowed_token_ids or ())
    if isinstance(prompt, int):
        return lists
    if isinstance(prompt, str):
        return lists + len(prompt)
    if _is_chat(prompt):
        return lists + sum(_size(turn) for turn in prompt if isinstance(turn, ChatMessage))
    return lists + len(prompt)


def _size(turn: ChatMessage) -> int:
    """Return the characters of a turn; those outside its content are estimated."""
    return len(turn.content) + (len(str(turn.more)) if turn.more else 0)


def prompt_param(prompt: Prompt) -> str:
    """Return the name of the prompt's field."""
    return "messages" if _is_chat(prompt) else "prompt"


def read_prompt(
    generate: Generate, codec: TextCodec | None, vocabulary: Vocabulary, room_tokens: int, limit: str
) -> Tokens | Refused:
    """Return the prompt's tokens.

    There are at most `room_tokens`; `limit` explains that bound in a refusal.
    """
    if isinstance(generate.prompt, int):
        return Refused("a real model needs a text or token ids, not a number of tokens", param="prompt")
    reading = generate.reading
    keep = reading.truncate_prompt_tokens
    if keep is not None and (keep < -1 or keep == 0 or keep > room_tokens):
        allowed = f"give 1 to {room_tokens}, or -1 for as many as fit"
        return Refused(f"truncate_prompt_tokens is {keep}: {allowed}", param="truncate_prompt_tokens")
    most_tokens = room_tokens if keep is None else None
    tokens = _read(generate.prompt, reading, codec, vocabulary, most_tokens, limit)
    if keep is None or isinstance(tokens, Refused):
        return tokens
    plain: Tokens = tokens
    if isinstance(generate.prompt, str) and codec is not None:
        text = generate.prompt
        again = _tokenise(lambda: codec.encode_plain(text), "prompt", limit)
        if isinstance(again, Refused):
            return again
        plain = again
    return _cut(tokens, plain, room_tokens if keep == -1 else keep, reading.truncation_side == "right")


def _cut(tokens: Tokens, plain: Tokens, keep: int, from_right: bool) -> Tokens:
    """Return at most `keep` tokens; special tokens that the tokenizer added around the `plain` ones stay,
    as in vLLM.
    """
    if len(tokens) <= keep:
        return tokens
    around = len(tokens) - len(plain)
    starts = [at for at in range(around + 1) if tokens[at : at + len(plain)] == plain]
    if not starts or around > keep:
        return tokens[:keep] if from_right else tokens[-keep:]
    first, num_plain = starts[0], keep - around
    kept = plain[:num_plain] if from_right else plain[len(plain) - num_plain :]
    return tokens[:first] + kept + tokens[first + len(plain) :]


def _read(
    prompt: str | Tokens | tuple[ChatMessage, ...],
    reading: Reading,
    codec: TextCodec | None,
    vocabulary: Vocabulary,
    most_tokens: int | None,
    limit: str,
) -> Tokens | Refused:
    if not isinstance(prompt, str) and not _is_chat(prompt):
        ids: Tokens = prompt  # type: ignore[assignment]  # no conversation, as just seen
        return _checked(ids, vocabulary, most_tokens, limit)
    param = prompt_param(prompt)
    if codec is None:
        return Refused(NO_CODEC, param=param)
    special = reading.add_special_tokens is not False
    tokens = _tokenise(
        (lambda: codec.encode(prompt, most_tokens, special))
        if isinstance(prompt, str)
        else (lambda: codec.encode_chat(prompt, most_tokens, reading)),  # type: ignore[arg-type]  # a conversation
        param,
        limit,
    )
    size = vocabulary.size
    if size is None or isinstance(tokens, Refused) or max(tokens, default=0) < size:
        return tokens
    token = max(tokens)
    return Refused(
        f"the text has {codec.token_name(token)!r}, which is the token id {token}, and the model has rows for"
        f" 0 to {size - 1} alone: leave it out",
        param=param,
    )


def _checked(tokens: Tokens, vocabulary: Vocabulary, most_tokens: int | None, limit: str) -> Tokens | Refused:
    if most_tokens is not None and len(tokens) > most_tokens:
        return too_long(f"{len(tokens)}", limit, "prompt")
    size = vocabulary.size
    for token in tokens:
        if token < 0 or (size is not None and token >= size):
            known = "it is negative" if size is None else f"0 to {size - 1}"
            return Refused(f"token id {token} is not in the vocabulary ({known})", param="prompt")
    return tokens


def _tokenise(tokens: Callable[[], list[int]], param: str, limit: str) -> Tokens | Refused:
    try:
        return tuple(tokens())
    # Two names, because a compiled variable has one type.
    except TooManyTokens as too_many:
        return too_long(f"at least {too_many.num_tokens}", limit, param)
    except UnicodeEncodeError as not_text:
        half = f"character {not_text.start} is one half of a surrogate pair"
        return Refused(f"{half}: send whole characters", param=param)
    except ValueError as refusal:
        return Refused(str(refusal), param=param)
    except ForeignFailure as panic:
        return Refused(f"the tokenizer fails at it ({panic}): send a shorter or another text", param=param)
    except Exception:
        log.exception("a prompt could not be tokenised; its request fails alone")
        return Refused("the prompt could not be tokenised", kind="failed", param=param)


def too_long(num_tokens: str, limit: str, param: str) -> Refused:
    """Return the refusal of a prompt that does not fit; `limit` names the bound."""
    return Refused(f"{limit}, but the prompt has {num_tokens}: shorten it", param=param, code=TOO_LONG)


def _is_chat(prompt: object) -> bool:
    return isinstance(prompt, tuple) and bool(prompt) and isinstance(prompt[0], ChatMessage)
