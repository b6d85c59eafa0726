"""How much text one token can stand for, so that a prompt can be refused before it is tokenised.

Law: a text of n bytes has at least n / `longest_token_bytes` tokens. That holds where no byte of a
text is dropped on its way to the tokens; for a tokenizer that may drop some, there is no bound.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

NFC_SHRINKS = 3
"""At most: three jamo of nine bytes become one syllable of three (Unicode Standard Annex 15)."""
KEEPING_SPLITS = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split")


def longest_token_bytes(tokenizer: Mapping[str, Any]) -> int | None:
    """The most bytes of a text that one token takes, from a tokenizer.json; None if unknown."""
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
    """The steps of a normalizer or pre-tokenizer, sequences opened."""
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
    """How many times shorter a text can become; None if it can vanish."""
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
