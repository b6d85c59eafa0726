"""Packing of encoded documents into rows of equal length, without cutting any document in two."""

from collections.abc import Iterator
from random import Random

from tokenizers import Tokenizer

from tools.tiny_model.grammar import draw_document
from tools.tiny_model.vocabulary import IGNORED, PAD, encode, token_id

Row = tuple[list[int], list[int]]


def pack(rng: Random, tokenizer: Tokenizer, length: int, num_open: int = 24) -> Iterator[Row]:
    """Yield rows of `length` token ids and labels without end.

    Each document goes into the fullest of `num_open` rows that still has room; a document that fits in no row
    closes the fullest one.  Documents longer than a row are left out.
    """
    pad = token_id(tokenizer, PAD)
    rows: list[Row] = [([], []) for _ in range(num_open)]
    while True:
        ids, labels = encode(tokenizer, draw_document(rng))
        if len(ids) > length:
            continue
        fitting = [r for r in rows if len(r[0]) + len(ids) <= length]
        if fitting:
            row = max(fitting, key=lambda r: len(r[0]))
        else:
            full = max(rows, key=lambda r: len(r[0]))
            missing = length - len(full[0])
            yield full[0] + [pad] * missing, full[1] + [IGNORED] * missing
            rows.remove(full)
            row = ([], [])
            rows.append(row)
        row[0].extend(ids)
        row[1].extend(labels)
