"""Tokens that a grammar allows, as bits: the form in which grammar engines give them.

Shapes: M rows with a mask, V tokens of the vocabulary, W words of 32 tokens each.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Bitmasks:
    """Which tokens the rows `row_M` may choose.

    Bit t % 32 of `word_MW[:, t // 32]`, counted from the lowest, is 1 if token t is allowed. Tokens beyond
    the last word are not allowed.
    """

    row_M: NDArray[np.int64]
    word_MW: NDArray[np.int32]

    def apply(self, logits_RV: Tensor) -> None:
        """Rule out what is not allowed, in place. O(M × V)."""
        vocab_size = logits_RV.shape[1]
        words_MW = np.ascontiguousarray(self.word_MW).view(np.uint8)
        allowed_MV = np.unpackbits(words_MW, axis=1, count=vocab_size, bitorder="little")
        is_out_MV = torch.from_numpy(allowed_MV == 0).to(logits_RV.device)
        if len(self.row_M) == len(logits_RV) and (self.row_M == np.arange(len(logits_RV))).all():
            logits_RV.masked_fill_(is_out_MV, float("-inf"))
            return
        for row, is_out_V in zip(self.row_M.tolist(), is_out_MV, strict=True):
            logits_RV[row].masked_fill_(is_out_V, float("-inf"))
