"""Arrays of one step, on the host or on a device: rows, requests, and sampling parameters.

For the transfer to a device they are placed in one buffer and copied at once.

Shapes: T tokens of the step; R sampling rows; N requests, B blocks of the longest; F requests that are fed
their last token on the device, the first rows of the step.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sundog.runtime.sampling.choices import Choices, SamplingColumns
from sundog.runtime.step.step import Span, Step

ALIGN_BYTES = 16
DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
}


def upload(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Return the arrays as tensors on the device, views of one buffer; does not wait for the copy.

    On CUDA the host's side is pinned memory, which torch reuses only once the copy is done.
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


A = TypeVar("A")
Array = NDArray[Any]


class Inputs(NamedTuple, Generic[A]):
    """Inputs of a step, each an array of the kind A: numpy's on the host, torch's on the device.

    Requests are in the order of their rows; `first_query_N1` and `first_key_N1` hold where each one's rows
    and keys begin, and where the last one's end. The last five belong to the sampling rows, and are empty if
    all are greedy.
    """

    token_T: A
    position_T: A
    slot_T: A
    sample_rows_R: A
    row_R: A
    fed_F: A
    wiped_B: A
    first_query_N1: A
    first_key_N1: A
    num_keys_N: A
    table_NB: A
    temperature_R: A
    top_k_R: A
    top_p_R: A
    log_min_p_R: A
    uniform_R: A


def gathered(step: Step) -> Inputs[Array]:
    """Return the arrays of a step, on the host."""
    num_queries_N, num_keys_N, table_NB = _requests(step.spans)
    temperature_R, top_k_R, top_p_R, log_min_p_R, uniform_R = (step.choices or NO_CHOICES).columns()
    return Inputs(
        token_T=step.token_T,
        position_T=step.position_T,
        slot_T=step.slot_T,
        sample_rows_R=step.sample_rows_R,
        row_R=step.row_R,
        fed_F=step.fed_F,
        wiped_B=step.wiped_B,
        first_query_N1=_starts(num_queries_N),
        first_key_N1=_starts(num_keys_N),
        num_keys_N=num_keys_N.astype(np.int32),
        table_NB=table_NB,
        temperature_R=temperature_R,
        top_k_R=top_k_R,
        top_p_R=top_p_R,
        log_min_p_R=log_min_p_R,
        uniform_R=uniform_R,
    )


def padded_rows(inputs: Inputs[Array], size_of: Callable[[int], int]) -> Inputs[Array]:
    """Return the inputs with more tokens and rows of logits, both zeros, which belong to no request."""
    num_tokens, num_logits = size_of(len(inputs.token_T)), size_of(len(inputs.sample_rows_R))
    return inputs._replace(
        token_T=_padded(inputs.token_T, num_tokens),
        position_T=_padded(inputs.position_T, num_tokens),
        sample_rows_R=_padded(inputs.sample_rows_R, num_logits),
    )


def padded_requests(inputs: Inputs[Array], num_requests: int) -> Inputs[Array]:
    """Return a step of decodes padded to `num_requests`; each added request has one key, in the null
    block.
    """
    num_more = num_requests - len(inputs.num_keys_N)
    ends = np.arange(1, num_more + 1, dtype=np.int32)
    return inputs._replace(
        token_T=_padded(inputs.token_T, num_requests),
        position_T=_padded(inputs.position_T, num_requests),
        slot_T=_padded(inputs.slot_T, num_requests),
        first_query_N1=np.concatenate((inputs.first_query_N1, inputs.first_query_N1[-1] + ends)),
        first_key_N1=np.concatenate((inputs.first_key_N1, inputs.first_key_N1[-1] + ends)),
        num_keys_N=np.concatenate((inputs.num_keys_N, np.ones(num_more, np.int32))),
        table_NB=_padded(inputs.table_NB, num_requests),
    )


def columns(inputs: Inputs[Tensor]) -> SamplingColumns:
    """Return the sampling parameters as columns."""
    return SamplingColumns(*inputs[-len(SamplingColumns._fields) :])


def put(inputs: Inputs[Array], device: torch.device) -> Inputs[Tensor]:
    """Return the arrays on the device, in one copy."""
    return Inputs(*upload(inputs, device))


def _requests(spans: tuple[Span, ...]) -> tuple[Array, Array, Array]:
    num_requests = [len(span.first_position_N) for span in spans]
    num_queries_N = np.repeat([span.num_queries for span in spans], num_requests)
    num_keys_N = np.concatenate([s.first_position_N for s in spans]) + num_queries_N
    width = width_of(max(span.table_NB.shape[1] for span in spans))
    table_NB = np.zeros((len(num_keys_N), width), np.int32)
    start = 0
    for span in spans:
        end = start + len(span.table_NB)
        table_NB[start:end, : span.table_NB.shape[1]] = span.table_NB
        start = end
    return num_queries_N, num_keys_N, table_NB


def width_of(num_blocks: int) -> int:
    """Return the number of entries per block table of a step: a multiple of 16, so that kernels see few
    widths.
    """
    return -(-num_blocks // 16) * 16


def _starts(count_N: Array) -> Array:
    """Return where each of N consecutive parts begins, and where the last ends: [N + 1]."""
    starts = np.zeros(len(count_N) + 1, np.int32)
    np.cumsum(count_N, out=starts[1:])
    return starts


def _padded(array: Array, size: int) -> Array:
    if size == len(array):
        return array
    out = np.zeros((size, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out


_NO_FLOATS = np.empty(0, np.float32)
NO_CHOICES = Choices(
    _NO_FLOATS,
    np.empty(0, np.int64),
    top_p_R=_NO_FLOATS,
    min_p_R=_NO_FLOATS,
    uniform_R=np.empty(0, np.float64),
)
