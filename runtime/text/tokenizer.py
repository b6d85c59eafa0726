"""Tokenizer without torch: encoding, a bound on lengths, and a streaming detokenizer.

Law: a text of n bytes has at least n / `longest_token_bytes` tokens, so that a prompt which is too long is
refused before it is tokenized. A tokenizer that may drop bytes of the text has no such bound.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import normalizers
from tokenizers.decoders import DecodeStream
from tokenizers.pre_tokenizers import ByteLevel

from sundog.actors.front.codec import TooManyTokens
from sundog.actors.front.foreign import OWN_EXITS, contained, failure
from sundog.actors.messages import PLAIN_READING, ChatMessage, Reading
from sundog.runtime.checkpoint.facts import LoadError, read_json
from sundog.runtime.text.apart import LONG, Apart
from sundog.runtime.text.chat_template import ChatTemplateError, ChatTemplates, rendered

# A decoder needs a few tokens before the first new one, to know whether a space is due.
CONTEXT_TOKENS = 8
CUT_OFF = "\ufffd"
"""Replacement character for bytes that are not yet a character."""
CHANGED_TEXT = "Invalid prefix encountered"
"""Library's error message if further tokens changed the text of earlier ones."""


class Decoder:
    """Decoder of one stream of tokens into text, as soon as the text is certain; skipped special tokens have
    none.

    A character cut off by the end of the stream has no text, as in vLLM. One cut off by the prompt's end
    belongs to the stream if the stream completes it; the prompt's own text is never repeated. `unspaced`
    holds the texts of tokens between which no space is put.
    """

    def __init__(
        self,
        tokenizer: FastTokenizer,
        prompt_ids: Sequence[int],
        skip_special_tokens: bool = True,
        unspaced: Mapping[int, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._unspaced = unspaced or {}
        self._cut_off = ""
        self._stream = self._begin(list(prompt_ids[-CONTEXT_TOKENS:]))
        self._last_is_special = False

    def _begin(self, context: list[int]) -> DecodeStream:
        def text(num_tokens: int) -> str:
            decode = partial(self._tokenizer.decode, context[:num_tokens], skip_special_tokens=self._skip)
            return str(contained(decode))

        num_whole = len(context)
        while num_whole and text(num_whole).endswith(CUT_OFF):
            num_whole -= 1
        stream = DecodeStream(context[:num_whole], skip_special_tokens=self._skip)
        if num_whole < len(context):
            self._cut_off = text(len(context))[len(text(num_whole)) :]
            for token_id in context[num_whole:]:
                contained(partial(stream.step, self._tokenizer, token_id))
        return stream

    def step(self, token_id: int) -> str:
        """Return the text that this token makes certain, "" inside of a character."""
        text = self._next(token_id)
        if self._cut_off and text:
            text, self._cut_off = text.removeprefix(self._cut_off), ""
        if self._unspaced:
            is_special = token_id in self._unspaced
            if is_special and self._last_is_special:
                text = self._unspaced[token_id]
            self._last_is_special = is_special
        return "" if text is None else str(text)

    def _next(self, token_id: int) -> str | None:
        """Return the new text; incomplete UTF-8 may also change the text before it, as in vLLM."""
        try:
            return self._stream.step(self._tokenizer, token_id)
        except Exception as error:  # the library raises bare Exception
            if not str(error).startswith(CHANGED_TEXT):
                raise
        except OWN_EXITS:
            raise
        except BaseException as panic:  # as `contained`, which a token does not pay for
            raise failure(panic) from panic
        self._stream, self._cut_off = DecodeStream([], skip_special_tokens=self._skip), ""
        return contained(partial(self._stream.step, self._tokenizer, token_id))


NFC_SHRINKS = 3
"""Factor by which NFC may shorten text: three jamo become one syllable (Unicode Standard Annex 15)."""
KEEPING_SPLITS = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split")


def longest_token_bytes(tokenizer: Mapping[str, Any]) -> int | None:
    """Return the maximum number of bytes of text per token, from a tokenizer.json; None if unknown."""
    model, added = tokenizer["model"], tokenizer.get("added_tokens") or ()
    shrinks = _shrinks(tokenizer.get("normalizer"))
    splits = list(_parts(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    if model.get("type") != "BPE" or shrinks is None or not all(map(_keeps, splits)):
        return None
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None
    vocabulary = model["vocab"]
    if any(split["type"] == "ByteLevel" for split in splits):
        if not vocabulary.keys() >= set(ByteLevel.alphabet()):
            return None
        longest = max(map(len, vocabulary))
    elif model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        longest = max(len(token.encode()) for token in vocabulary)
    else:
        return None
    return shrinks * max([longest, *(len(token["content"].encode()) for token in added)])


def _parts(node: Mapping[str, Any] | None, name: str) -> Iterator[Mapping[str, Any]]:
    if node is None:
        return
    if node["type"] == "Sequence":
        for part in node[name]:
            yield from _parts(part, name)
    else:
        yield node


def _keeps(split: Mapping[str, Any]) -> bool:
    return split["type"] in KEEPING_SPLITS and split.get("behavior") != "Removed"


def _shrinks(normalizer: Mapping[str, Any] | None) -> int | None:
    """Return how many times shorter a text can become; None if it can vanish."""
    factor = 1
    for step in _parts(normalizer, "normalizers"):
        match step:
            case {"type": "NFC"}:
                factor *= NFC_SHRINKS
            case {"type": "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                if len(new.encode()) < len(old.encode()):
                    return None
            case _:
                return None
    return factor


SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Formats that transformers can turn into a fast tokenizer when there is no tokenizer.json.
OTHER_FORMATS = ("tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")


class Tokenizer:
    """Tokenizer of a model folder, of lowercased text if it `lowercases`.

    `eos_token_ids` are the tokens that end an answer, the main one first; `vocab_size` includes added tokens.
    Raises LoadError if the folder has no readable tokenizer.
    """

    def __init__(
        self, model_dir: str | Path, *, lowercases: bool = False, chat_template: Path | None = None
    ) -> None:
        self.chat_template = chat_template
        """File that replaces the folder's own templates, if given."""
        folder = self.folder = Path(model_dir)
        self.lowercases = lowercases
        self._fast = _load_fast(folder)
        if lowercases:
            own = [self._fast.normalizer] if self._fast.normalizer else []
            self._fast.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
        self._fast.no_truncation()
        self._fast.no_padding()
        self._apart = Apart(self.to_json)
        self._longest_token_bytes = longest_token_bytes(json.loads(self._fast.to_str()))
        self._space_mark = _space_mark(json.loads(self._fast.to_str()).get("pre_tokenizer"))
        self._added = {i: token.content for i, token in self._fast.get_added_tokens_decoder().items()}
        self._config = config = read_json(folder / "tokenizer_config.json")
        self._special = _special_tokens(folder, config)
        self._templates = ChatTemplates(folder, config, chat_template)
        self.vocab_size: int = self._fast.get_vocab_size(with_added_tokens=True)
        self.eos_token_ids = self._find_eos(folder)

    def to_json(self) -> str:
        """Return the tokenizer as the text of tokenizer.json."""
        return str(self._fast.to_str())

    def encode(self, text: str, most_tokens: int | None = None, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a plain prompt, by default with special tokens (such as BOS).

        Raises TooManyTokens for more than `most_tokens`, before tokenizing if the length in bytes suffices.
        """
        return self._encode(text, most_tokens, add_special_tokens=add_special_tokens)

    def encode_plain(self, text: str) -> list[int]:
        """Return the tokens of a piece of text, without those that the tokenizer adds to a prompt."""
        return self._encode(text, None, add_special_tokens=False)

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        most_tokens: int | None = None,
        reading: Reading = PLAIN_READING,
    ) -> list[int]:
        """Return the tokens of a conversation, by default up to the assistant's next turn.

        Raises ChatTemplateError if the model has no chat template or its template refuses.
        """
        text = self.render_chat(messages, reading)
        return self._encode(text, most_tokens, add_special_tokens=reading.add_special_tokens is True)

    def _encode(self, text: str, most_tokens: int | None, *, add_special_tokens: bool) -> list[int]:
        num_bytes = len(text.encode())
        if most_tokens is not None and self._longest_token_bytes is not None:
            least = -(-num_bytes // self._longest_token_bytes)
            if least > most_tokens:
                raise TooManyTokens(least)
        if len(text) >= LONG:
            return self._apart.encode(text, most_tokens, add_special_tokens=add_special_tokens)
        # The fast variant leaves out the offsets of tokens, which are not needed and cost time.
        encode = partial(self._fast.encode_batch_fast, [text], add_special_tokens=add_special_tokens)
        (encoding,) = contained(encode)
        if most_tokens is not None and len(encoding) > most_tokens:
            raise TooManyTokens(len(encoding))
        return list(encoding.ids)

    def render_chat(self, messages: Sequence[ChatMessage], reading: Reading = PLAIN_READING) -> str:
        """Return the conversation rendered by the model's own template."""
        if (template := self._templates.chosen(reading)) is None:
            raise ChatTemplateError(
                "this model has no chat template: use /v1/completions with a plain prompt"
            )
        return rendered(template, messages, reading, self._special)

    @property
    def tool_call_parser(self) -> str | None:
        """Parser of calls in the chat template's format, by vLLM's name; None if unknown."""
        return self._templates.call_format

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of all tokens at once, by default without special ones."""
        decode = partial(self._fast.decode, list(token_ids), skip_special_tokens=skip_special_tokens)
        return str(contained(decode))

    def token_text(self, token_id: int) -> str:
        """Return the text of one token, including leading spaces that decoding strips from a text."""
        text = self.decode([token_id], skip_special_tokens=False)
        if self._space_mark is None:
            return text
        piece = self._fast.id_to_token(token_id) or ""
        num_spaces = len(piece) - len(piece.lstrip(self._space_mark))
        return " " * max(0, num_spaces - (len(text) - len(text.lstrip(" ")))) + text

    def info(self) -> dict[str, object]:
        """Return the tokenizer's own configuration with the keys that vLLM adds, and tokens as their text."""
        loaded: dict[str, object] = {
            "added_tokens_decoder": {str(token): text for token, text in sorted(self._added.items())},
            "backend": "tokenizers",
            "extra_special_tokens": self._config.get("additional_special_tokens", []),
            "is_local": True,
            "local_files_only": False,
            "name_or_path": str(self.folder),
            "tokenizer_class": "TokenizersBackend",
        }
        return loaded | {name: _as_text(value) for name, value in self._config.items()}

    def token_name(self, token_id: int) -> str | None:
        """Return the vocabulary's spelling of a token; None if it has none."""
        name: str | None = self._fast.id_to_token(token_id)
        return name

    def decoder(
        self,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> Decoder:
        """Return an incremental decoder for the tokens that follow `prompt_ids`; 1 µs a token."""
        spaced = skip_special_tokens or spaces_between_special_tokens
        return Decoder(self._fast, prompt_ids, skip_special_tokens, None if spaced else self._added)

    def _find_eos(self, folder: Path) -> tuple[int, ...]:
        for name in ("generation_config.json", "config.json"):
            found = read_json(folder / name).get("eos_token_id")
            if found is None:
                continue
            tokens = [t for t in (found if isinstance(found, list) else [found]) if isinstance(t, int)]
            if not tokens:
                raise LoadError(f"cannot read {folder / name}: eos_token_id is {found!r}, no token")
            return tuple(tokens)
        token = self._special.get("eos_token")
        token_id = None if token is None else self._fast.token_to_id(token)
        return () if token_id is None else (token_id,)


def _load_fast(folder: Path) -> FastTokenizer:
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return FastTokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise LoadError(f"cannot read {path}: {error}") from error
    if not any((folder / name).is_file() for name in OTHER_FORMATS):
        raise LoadError(f"{folder} has no tokenizer: tokenizer.json is missing")
    try:
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        fast = loaded.backend_tokenizer
    except Exception as error:  # whatever is raised, the folder's files are at fault
        first_line = str(error).strip().partition("\n")[0]
        raise LoadError(
            f"{folder} has no tokenizer.json, and its tokenizer cannot be converted: {first_line}"
        ) from error
    assert isinstance(fast, FastTokenizer)
    return fast


def _special_tokens(folder: Path, config: dict[str, object]) -> dict[str, str]:
    found = {**read_json(folder / "special_tokens_map.json"), **config}
    tokens = {}
    for name in SPECIAL_NAMES:
        token = found.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            tokens[name] = token
    return tokens


def _as_text(value: object) -> object:
    if isinstance(value, dict):
        texts = {key: _as_text(each) for key, each in value.items()}
        return texts.get("content", texts)
    return [_as_text(each) for each in value] if isinstance(value, list) else value


def _space_mark(pre_tokenizer: object) -> str | None:
    """Return the text that stands for a space before a word, if decoding a single token loses the space."""
    if not isinstance(pre_tokenizer, dict):
        return None
    if pre_tokenizer.get("type") == "Metaspace":
        return str(pre_tokenizer.get("replacement", "▁"))
    parts = pre_tokenizer.get("pretokenizers", [])
    return next((mark for mark in map(_space_mark, parts) if mark is not None), None)
