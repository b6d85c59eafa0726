"""Arrays on their way to a device: laid side by side in one buffer, taken there by one copy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGN_BYTES = 16
DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
}


def upload(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """The arrays as tensors on the device, views of one buffer; does not wait for the copy.

    On CUDA the host's side is pinned memory, which torch hands out again only once the copy is done.
    """
    starts = np.cumsum([0, *(-(-array.nbytes // ALIGN_BYTES) * ALIGN_BYTES for array in arrays)]).tolist()
    host = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    room = host.numpy()
    for array, start in zip(arrays, starts, strict=False):
        room[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = host.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(DTYPES[array.dtype]).view(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]
