"""Blocks of a GGUF file as whole numbers with a scale and, in some types, a least weight for 32 or 16 inputs.

Law: the weights are those of the `gguf` package's `dequantize`, bit for bit. Scales keep the file's 16 bits;
those of the K types are products of two numbers, exact in 32.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sundog.runtime.checkpoint.gguf.tensors import Bytes

NIBBLES, PAIRS_OF_BITS, BITS = (np.arange(0, 8, width, dtype=np.uint8) for width in (4, 2, 1))
Q4_BYTES, K_BLOCK, K_SCALE_BYTES = 16, 256, 12
KINDS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
"""Types that are stored this way; Q2_K and Q3_K are multiplied out."""


class WholeWeights(NamedTuple):
    """Weights of some outputs as unsigned integers [O, I] of `bits`, with scales [O, G] in float or half.

    A weight is its scale times the integer less half the range, or, with least weights [O, G], its group's
    least plus the scale times the integer.
    """

    bits: int
    numbers_OI: Tensor
    scale_OG: Tensor
    least_OG: Tensor | None = None

    @property
    def group(self) -> int:
        """Number of inputs per scale."""
        return self.numbers_OI.shape[1] // self.scale_OG.shape[1]

    def multiplied_out(self) -> Tensor:
        """Return the weights [O, I] in float32."""
        scale_OI: Tensor = self.scale_OG.float().repeat_interleave(self.group, 1)
        if self.least_OG is None:
            scale_OI *= self.numbers_OI.float() - 2 ** (self.bits - 1)
            return scale_OI
        scale_OI *= self.numbers_OI
        scale_OI += self.least_OG.float().repeat_interleave(self.group, 1)
        return scale_OI


def whole(kind: str, rows: Bytes) -> WholeWeights:
    """Return the weights of the rows [O, bytes] of a tensor, of one of `KINDS`."""
    read = {"Q8_0": _q8_0, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}.get(kind)
    return _small(kind, rows) if read is None else read(rows)


def _made(
    bits: int, rows: Bytes, numbers: npt.NDArray[np.uint8], *tables: npt.NDArray[np.floating]
) -> WholeWeights:
    shaped = (torch.from_numpy(np.ascontiguousarray(each.reshape(len(rows), -1))) for each in tables)
    return WholeWeights(bits, torch.from_numpy(numbers.reshape(len(rows), -1)), *shaped)


def _half(blocks: Bytes, first: int) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, first : first + 2]).view(np.float16)


def _apart(packed: Bytes, shifts: Bytes, width: int) -> Bytes:
    """Return the numbers that bytes hold: the lowest bits of `width` bytes, then their next ones."""
    spread = packed.reshape(len(packed), -1, 1, width) >> shifts[:, None]
    return (spread & np.uint8(2 ** int(shifts[1]) - 1)).reshape(len(packed), -1)


def _q8_0(rows: Bytes) -> WholeWeights:
    blocks = rows.reshape(-1, 34)
    return _made(8, rows, blocks[:, 2:] ^ np.uint8(128), _half(blocks, 0))


def _small(kind: str, rows: Bytes) -> WholeWeights:
    """Q4 and Q5: a scale, in kind 1 a least weight, in Q5 a fifth bit of all, and four bits."""
    has_least, has_fifth = kind[-1] == "1", kind[1] == "5"
    head = 4 if has_least else 2
    blocks = rows.reshape(-1, head + 4 * has_fifth + Q4_BYTES)
    numbers = _apart(blocks[:, -Q4_BYTES:], NIBBLES, Q4_BYTES)
    if has_fifth:
        numbers |= _apart(np.ascontiguousarray(blocks[:, head : head + 4]), BITS, 1) << np.uint8(4)
        if not has_least:
            numbers += np.uint8(128 - 16)
    return _made(8 if has_fifth else 4, rows, numbers, *(_half(blocks, at) for at in range(0, head, 2)))


def _k_tables(blocks: Bytes) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Scale and least weight of the eight groups of Q4_K and Q5_K, from six bits for each."""
    from gguf.quants import Q4_K

    factors = Q4_K.get_scale_min(blocks[:, 4 : 4 + K_SCALE_BYTES])
    scale, least = (
        _half(blocks, at).astype(np.float32) * each for at, each in zip((0, 2), factors, strict=True)
    )
    return scale, -least


def _q4_k(rows: Bytes) -> WholeWeights:
    blocks = rows.reshape(-1, 4 + K_SCALE_BYTES + K_BLOCK // 2)
    return _made(4, rows, _apart(blocks[:, 4 + K_SCALE_BYTES :], NIBBLES, 32), *_k_tables(blocks))


def _q5_k(rows: Bytes) -> WholeWeights:
    blocks = rows.reshape(-1, 4 + K_SCALE_BYTES + K_BLOCK // 8 + K_BLOCK // 2)
    fifth, four = np.split(blocks[:, 4 + K_SCALE_BYTES :], [K_BLOCK // 8], axis=1)
    return _made(
        8, rows, _apart(four, NIBBLES, 32) | (_apart(fifth, BITS, 32) << np.uint8(4)), *_k_tables(blocks)
    )


def _q6_k(rows: Bytes) -> WholeWeights:
    blocks = rows.reshape(-1, K_BLOCK // 2 + K_BLOCK // 4 + K_BLOCK // 16 + 2)
    lower, upper, scales, _ = np.split(blocks, [128, 192, 208], axis=1)
    numbers = _apart(lower, NIBBLES, 64) | (_apart(upper, PAIRS_OF_BITS, 32) << np.uint8(4))
    scale = _half(blocks, 208).astype(np.float32) * np.ascontiguousarray(scales).view(np.int8)
    return _made(8, rows, numbers + np.uint8(128 - 32), scale)
