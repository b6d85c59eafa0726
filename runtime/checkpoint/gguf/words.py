"""Conversion of a GGUF file's tokenizer to `tokenizer.json` and `tokenizer_config.json`.

Two kinds are supported: byte-level BPE with merges in the file ("gpt2"), and SentencePiece's BPE ("llama"),
whose merges follow from the scores. `tokenizer.ggml.pre` names the rule that splits text into words; an
unknown one is refused, because another rule gives other tokens.
"""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from sundog.runtime.checkpoint.gguf.header import GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "▁"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
GPT2, LLAMA3 = "gpt2", "llama3"
SPLITS = {
    "default": None,
    "gpt-2": None,
    "llama-bpe": _WORDS + r"\p{N}{1,3}" + _TAIL,
    "llama3": _WORDS + r"\p{N}{1,3}" + _TAIL,
    "llama-v3": _WORDS + r"\p{N}{1,3}" + _TAIL,
    "qwen2": _WORDS + r"\p{N}" + _TAIL,
    "deepseek-r1-qwen": _WORDS + r"\p{N}" + _TAIL,
    "smollm": "digits",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Ways to split text into words, by llama.cpp's names: None is GPT-2's own, "digits" first splits off each
digit.
"""
WHOLE_FIRST = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""Vocabularies in which a word that is a token is never merged from parts, and prompts begin with BOS."""
ENDS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
)
"""Control tokens that end an answer in any model that has them, as in llama.cpp."""
ADDED = (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding"))


class Words:
    """Vocabulary of a file."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.tokens = _told_apart(file.texts("tokenizer.ggml.tokens"))
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        kinds = file.fields.get("tokenizer.ggml.token_type", [NORMAL] * len(self.tokens))
        if not isinstance(kinds, list) or len(kinds) != len(self.tokens):
            raise file.wrong("tokenizer.ggml.token_type has another length than the tokens")
        self._kinds = kinds
        self._model = file.text("tokenizer.ggml.model")

    def special(self) -> dict[str, str]:
        """Return the special tokens, by their keys in tokenizer_config.json."""
        found = {}
        for name, role in ADDED:
            if (token_id := self._id(role)) is not None:
                found[name] = self.tokens[token_id]
        return found

    def ends(self) -> list[int]:
        """Return the ids of end tokens, the main one first."""
        named = [token_id for role in ("eos", "eot", "eom") if (token_id := self._id(role)) is not None]
        known = [
            self._ids[token]
            for token in ENDS
            if token in self._ids and self._kinds[self._ids[token]] == CONTROL
        ]
        return list(dict.fromkeys([*named, *known]))

    def tokenizer(self) -> str:
        """Return the text of the tokenizer.json."""
        if self._model == "gpt2":
            made = self._byte_level()
        elif self._model == "llama":
            made = self._sentence_pieces()
        else:
            raise self._file.wrong(f"its tokenizer is {self._model}; gpt2 and llama are served")
        control = [token for token, kind in zip(self.tokens, self._kinds, strict=True) if kind == CONTROL]
        own = [token for token, kind in zip(self.tokens, self._kinds, strict=True) if kind == USER_DEFINED]
        made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
        made.add_tokens([AddedToken(token, normalized=False, special=False) for token in own])
        return str(made.to_str())

    def _id(self, role: str) -> int | None:
        key = f"tokenizer.ggml.{role}_token_id"
        if key not in self._file.fields:
            return None
        return self._file.whole(key, 0, len(self.tokens) - 1)

    def _byte_level(self) -> Tokenizer:
        named = self._file.fields.get("tokenizer.ggml.pre", "default")
        if named not in SPLITS:
            raise self._file.wrong(
                f"its text is split as {named} (tokenizer.ggml.pre); known are {', '.join(SPLITS)}"
            )
        merges = [tuple(merge.split(" ", 1)) for merge in self._file.texts("tokenizer.ggml.merges")]
        known = self._ids
        for merge in merges:
            if len(merge) != 2 or not {*merge, "".join(merge)} <= known.keys():
                raise self._file.wrong(f"tokenizer.ggml.merges has {merge}, whose parts are not tokens")
        has_whole_words = named in WHOLE_FIRST
        made = Tokenizer(models.BPE(known, merges, ignore_merges=has_whole_words))  # type: ignore[arg-type]
        split = SPLITS[str(named)]
        if split is None:
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        elif split == "digits":
            made.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        else:
            made.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(split), behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
        made.decoder = decoders.ByteLevel()
        self._begin(made, by_default=has_whole_words)
        return made

    def _sentence_pieces(self) -> Tokenizer:
        is_gemma = self._file.architecture.startswith("gemma")
        unknown = self._id("unknown")
        made = Tokenizer(
            models.BPE(
                self._ids,
                self._merges(by_place=is_gemma),
                unk_token=None if unknown is None else self.tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        spaces = [normalizers.Replace(" ", SPACE)]
        is_led_by_space = self._file.fields.get("tokenizer.ggml.add_space_prefix", not is_gemma) is True
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), *spaces] if is_led_by_space else spaces
        )
        parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if is_led_by_space else parts)
        self._begin(made, by_default=True)
        return made

    def _merges(self, *, by_place: bool) -> list[tuple[str, str]]:
        """Return all merges of two tokens into one, the best first, by score or, for Gemma, by id."""
        scores = self._file.fields.get("tokenizer.ggml.scores")
        if not isinstance(scores, list) or len(scores) != len(self.tokens):
            raise self._file.wrong("tokenizer.ggml.scores has another length than the tokens")
        found: list[tuple[float, int, int, int, int, str, str]] = []
        for index, (token, kind) in enumerate(zip(self.tokens, self._kinds, strict=True)):
            if kind not in (NORMAL, USER_DEFINED):
                continue
            score = -float(index) if by_place else float(scores[index])
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in self._ids and right in self._ids:
                    order = (-score, -len(left), -len(right), self._ids[left], self._ids[right])
                    found.append((*order, left, right))
        return [(left, right) for *_, left, right in sorted(found)]

    def _begin(self, made: Tokenizer, *, by_default: bool) -> None:
        """Add BOS at the beginning of prompts, and EOS at the end, if the file asks for it."""
        bos, eos = self._id("bos"), self._id("eos")
        fields = self._file.fields
        begins = bos is not None and fields.get("tokenizer.ggml.add_bos_token", by_default) is True
        ends = eos is not None and fields.get("tokenizer.ggml.add_eos_token", False) is True
        roles = [(self.tokens[each], each) for each in (bos, eos) if each is not None]
        parts = ["$A"]
        if begins and bos is not None:
            parts.insert(0, self.tokens[bos])
        if ends and eos is not None:
            parts.append(self.tokens[eos])
        if len(parts) > 1:
            made.post_processor = processors.TemplateProcessing(single=parts, special_tokens=roles)

    def config(self) -> str:
        """Return the text of the tokenizer_config.json, with the chat templates of the file."""
        fields = self._file.fields
        templates = [
            {"name": key.removeprefix("tokenizer.chat_template.") or "default", "template": text}
            for key, text in fields.items()
            if key.startswith("tokenizer.chat_template.") and isinstance(text, str)
        ]
        own = fields.get("tokenizer.chat_template")
        found: dict[str, object] = dict(self.special())
        if isinstance(own, str):
            found["chat_template"] = [{"name": "default", "template": own}, *templates] if templates else own
        return json.dumps(found, ensure_ascii=False)


def _told_apart(tokens: list[str]) -> list[str]:
    """Return the tokens, with duplicates marked: a vocabulary may contain a text only once."""
    seen: dict[str, int] = {}
    found = []
    for index, token in enumerate(tokens):
        name = token if token not in seen and token else f"<|sundog:{index}|>"
        seen[name] = index
        found.append(name)
    return found
