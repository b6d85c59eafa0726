"""Text to tokens and back, without torch: tokenizer.json, chat template, incremental decoding."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import DecodeStream

from actors.front.codec import TooManyTokens
from actors.messages import ChatMessage
from runtime.facts import LoadError, read_json
from runtime.token_bound import longest_token_bytes

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Formats that transformers can turn into a fast tokenizer when there is no tokenizer.json.
OTHER_FORMATS = ("tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")
# A decoder needs a few tokens before the first new one, to know whether a space is due.
CONTEXT_TOKENS = 8


class ChatTemplateError(ValueError):
    """Messages that cannot become a prompt, with the reason."""


class Decoder:
    """The text of one stream of tokens, as soon as it is certain; special tokens have none."""

    def __init__(self, tokenizer: FastTokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(list(prompt_ids[-CONTEXT_TOKENS:]), skip_special_tokens=True)
        self._held: list[int] = []

    def step(self, token_id: int) -> str:
        """The text that this token makes certain, "" inside of a character."""
        text = self._stream.step(self._tokenizer, token_id)
        if text is None:
            self._held.append(token_id)
            return ""
        self._held.clear()
        return str(text)

    def flush(self) -> str:
        """The bytes of a character that the end of the stream cut off, as U+FFFD marks."""
        text = self._tokenizer.decode(self._held, skip_special_tokens=True) if self._held else ""
        self._held.clear()
        return str(text)


class Tokenizer:
    """The tokenizer of a model folder.

    `eos_token_ids` are the tokens that end an answer, the first being the main one; `vocab_size`
    counts added tokens. Raises LoadError when the folder has no tokenizer that can be read.
    """

    def __init__(self, model_dir: str | Path) -> None:
        folder = Path(model_dir)
        self._fast = _load_fast(folder)
        self._fast.no_truncation()
        self._fast.no_padding()
        self._longest_token_bytes = longest_token_bytes(json.loads(self._fast.to_str()))
        config = read_json(folder / "tokenizer_config.json")
        self._special = _special_tokens(folder, config)
        source = _template_source(folder, config)
        self._template = None if source is None else _compile(source, folder)
        self.vocab_size: int = self._fast.get_vocab_size(with_added_tokens=True)
        self.eos_token_ids = self._find_eos(folder)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, most_tokens: int | None = None) -> list[int]:
        """The tokens of a plain prompt, with what the tokenizer adds itself (such as BOS).

        Raises TooManyTokens for more than `most_tokens`, before tokenising where the length in bytes tells.
        """
        return self._encode(text, most_tokens, add_special_tokens=True)

    def encode_plain(self, text: str) -> list[int]:
        """The tokens of a piece of text alone, without what the tokenizer adds to a prompt."""
        return self._encode(text, None, add_special_tokens=False)

    def encode_chat(self, messages: Sequence[ChatMessage], most_tokens: int | None = None) -> list[int]:
        """The tokens of a conversation up to where the assistant speaks next.

        Raises ChatTemplateError when the model has no chat template or its template refuses.
        """
        return self._encode(self.render_chat(messages), most_tokens, add_special_tokens=False)

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

    def render_chat(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation as the model's own template writes it."""
        if self._template is None:
            raise ChatTemplateError(
                "this model has no chat template: use /v1/completions with a plain prompt"
            )
        turns = [{"role": turn.role, "content": turn.content} for turn in messages]
        try:
            return self._template.render(
                messages=turns, tools=None, documents=None, add_generation_prompt=True, **self._special
            )
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses: {error}") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of all tokens at once, without special ones."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=True))

    def decoder(self, prompt_ids: Sequence[int] = ()) -> Decoder:
        """An incremental decoder for the tokens that follow `prompt_ids`; 1 µs a token."""
        return Decoder(self._fast, prompt_ids)

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


def _template_source(folder: Path, config: dict[str, object]) -> str | None:
    """The chat template: its own file before the configuration; of several, the default one."""
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        entries = [entry for entry in source if isinstance(entry, dict)]
        source = next((entry.get("template") for entry in entries if entry.get("name") == "default"), None)
    if source is not None and not isinstance(source, str):
        raise LoadError(f"cannot read the chat template of {folder}: it is no text")
    return source


def _compile(source: str, folder: Path) -> jinja2.Template:
    """The template in a sandbox with the names that transformers gives templates."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise LoadError(f"cannot read the chat template of {folder}: {error}") from error


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant said, for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012  # declared so by jinja

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML; templates want plain JSON."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(reason: str) -> NoReturn:
    raise jinja2.TemplateError(reason)
