"""Text to tokens and back, without torch: tokenizer.json and the chat template."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import normalizers

from actors.front.codec import TooManyTokens
from actors.messages import PLAIN_READING, ChatMessage, Reading
from runtime.checkpoint.facts import LoadError, read_json
from runtime.text.chat_template import ChatTemplateError, compiled, rendered, template_source
from runtime.text.detokenizer import Decoder
from runtime.text.token_bound import longest_token_bytes

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Formats that transformers can turn into a fast tokenizer when there is no tokenizer.json.
OTHER_FORMATS = ("tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")


class Tokenizer:
    """The tokenizer of a model folder, of lowercased text if it `lowercases`.

    `eos_token_ids` are the tokens that end an answer, the first being the main one; `vocab_size`
    counts added tokens. Raises LoadError when the folder has no tokenizer that can be read.
    """

    def __init__(self, model_dir: str | Path, *, lowercases: bool = False) -> None:
        folder = self.folder = Path(model_dir)
        self.lowercases = lowercases
        self._fast = _load_fast(folder)
        if lowercases:
            own = [self._fast.normalizer] if self._fast.normalizer else []
            self._fast.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
        self._fast.no_truncation()
        self._fast.no_padding()
        self._longest_token_bytes = longest_token_bytes(json.loads(self._fast.to_str()))
        self._space_mark = _space_mark(json.loads(self._fast.to_str()).get("pre_tokenizer"))
        self._added = {i: token.content for i, token in self._fast.get_added_tokens_decoder().items()}
        self._config = config = read_json(folder / "tokenizer_config.json")
        self._special = _special_tokens(folder, config)
        source = template_source(folder, config)
        self._template = None if source is None else compiled(source, folder)
        self.vocab_size: int = self._fast.get_vocab_size(with_added_tokens=True)
        self.eos_token_ids = self._find_eos(folder)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def to_json(self) -> str:
        """As tokenizer.json has it."""
        return str(self._fast.to_str())

    def encode(self, text: str, most_tokens: int | None = None, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a plain prompt, with what the tokenizer adds itself (such as BOS) unless told not to.

        Raises TooManyTokens for more than `most_tokens`, before tokenising where the length in bytes tells.
        """
        return self._encode(text, most_tokens, add_special_tokens=add_special_tokens)

    def encode_plain(self, text: str) -> list[int]:
        """The tokens of a piece of text alone, without what the tokenizer adds to a prompt."""
        return self._encode(text, None, add_special_tokens=False)

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        most_tokens: int | None = None,
        reading: Reading = PLAIN_READING,
    ) -> list[int]:
        """The tokens of a conversation, by default up to where the assistant speaks next.

        Raises ChatTemplateError when the model has no chat template or its template refuses.
        """
        text = self.render_chat(messages, reading)
        return self._encode(text, most_tokens, add_special_tokens=reading.add_special_tokens is True)

    def _encode(self, text: str, most_tokens: int | None, *, add_special_tokens: bool) -> list[int]:
        num_bytes = len(text.encode())
        if most_tokens is not None and self._longest_token_bytes is not None:
            least = -(-num_bytes // self._longest_token_bytes)
            if least > most_tokens:
                raise TooManyTokens(least)
        # The fast variant leaves out the offsets of tokens, which are not needed and cost time.
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        if most_tokens is not None and len(encoding) > most_tokens:
            raise TooManyTokens(len(encoding))
        return list(encoding.ids)

    def render_chat(self, messages: Sequence[ChatMessage], reading: Reading = PLAIN_READING) -> str:
        """The conversation as the model's own template writes it."""
        if self._template is None:
            raise ChatTemplateError(
                "this model has no chat template: use /v1/completions with a plain prompt"
            )
        return rendered(self._template, messages, reading, self._special)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of all tokens at once, by default without special ones."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """The text of one token alone, with the spaces that decoding strips from the beginning of a text."""
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
        """How the vocabulary spells a token; None if it has none."""
        name: str | None = self._fast.id_to_token(token_id)
        return name

    def decoder(
        self,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> Decoder:
        """An incremental decoder for the tokens that follow `prompt_ids`; 1 µs a token."""
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
    """Special tokens by name, as templates know them; files write them as text or as objects."""
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
    """Tokens that a configuration writes as objects, alone or in lists, as their text."""
    if isinstance(value, dict):
        texts = {key: _as_text(each) for key, each in value.items()}
        return texts.get("content", texts)
    return [_as_text(each) for each in value] if isinstance(value, list) else value


def _space_mark(pre_tokenizer: object) -> str | None:
    """What stands for a space in front of a word, for tokenizers that strip it from a single token's text."""
    if not isinstance(pre_tokenizer, dict):
        return None
    if pre_tokenizer.get("type") == "Metaspace":
        return str(pre_tokenizer.get("replacement", "▁"))
    parts = pre_tokenizer.get("pretokenizers", [])
    return next((mark for mark in map(_space_mark, parts) if mark is not None), None)
