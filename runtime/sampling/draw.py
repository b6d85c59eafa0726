"""Drawing tokens by weight, from what `min_p`, `top_k` and `top_p` leave.

Shapes: R requests that draw in this step, V tokens of the vocabulary, W the likeliest of them.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.sampling.choices import Choices, Columns

# Enough of the likeliest tokens to hold most requests' `top_p`, cheap against sorting them all.
FEW_TOKENS = 1024


def draw(logits_RV: Tensor, best_R: Tensor, choices: Choices, columns: Columns) -> Tensor:
    """A token for each row, by inverting the sum of the weights in the vocabulary's order.

    What the host must know it knows from `choices`: on CUDA nothing here waits for the device. A row with
    temperature 0 is drawn at temperature 1.
    """
    # From the largest down, so that no temperature makes an infinity of it.
    temperature_R1 = columns.temperature_R.masked_fill(columns.temperature_R == 0, 1.0)[:, None]
    logits_RV = (logits_RV - best_R[:, None]) / temperature_R1
    if choices.min_p_R.any():
        # A weight relative to the likeliest token's is e to its logit here.
        logits_RV.masked_fill_(logits_RV < columns.log_min_p_R[:, None], float("-inf"))
    is_filtered_R = (choices.top_k_R > 0) | (choices.top_p_R < 1)
    if is_filtered_R.any():
        logits_RV.masked_fill_(logits_RV < _least(logits_RV, choices, columns, is_filtered_R), float("-inf"))
    sum_RV = logits_RV.softmax(-1).cumsum(-1)
    total_R1 = sum_RV[:, -1:]
    target_R1 = total_R1 * columns.uniform_R[:, None]
    # Strictly below the total, so that the first sum above it belongs to a token with weight.
    most_R1 = torch.nextafter(total_R1, torch.zeros_like(total_R1))
    target_R1 = torch.minimum(target_R1.to(total_R1.dtype), most_R1)
    return torch.searchsorted(sum_RV, target_R1, right=True)[:, 0]


def _least(logits_RV: Tensor, choices: Choices, columns: Columns, is_filtered_R: NDArray[np.bool_]) -> Tensor:
    """The least logit [R, 1] that `top_k` and `top_p` keep; minus infinity where a row has neither."""
    vocab_size = logits_RV.shape[1]
    is_few_R = (choices.top_k_R > 0) & (choices.top_k_R < vocab_size)
    most = int(choices.top_k_R[is_few_R].max(initial=0))
    needs_more = bool((is_filtered_R & ~is_few_R).any())
    top_k_R1, top_p_R1 = columns.top_k_R[:, None], columns.top_p_R[:, None]
    if logits_RV.is_cuda:  # to see whether few are enough would wait for the device
        width = vocab_size if needs_more else most
        least_R1 = _least_kept(logits_RV, top_k_R1, top_p_R1, width, needs_more=needs_more)
        return torch.where((top_k_R1 > 0) | (top_p_R1 < 1), least_R1, float("-inf"))
    rows = torch.from_numpy(np.flatnonzero(is_filtered_R))
    width = max(most, FEW_TOKENS if needs_more else 0)
    least_R1 = logits_RV.new_full((len(logits_RV), 1), float("-inf"))
    filtered_FV = logits_RV if len(rows) == len(logits_RV) else logits_RV[rows]
    least_R1[rows] = _least_kept(filtered_FV, top_k_R1[rows], top_p_R1[rows], width, needs_more=needs_more)
    return least_R1


def _least_kept(
    logits_RV: Tensor, top_k_R1: Tensor, top_p_R1: Tensor, width: int, *, needs_more: bool
) -> Tensor:
    """The least logit [R, 1] that is both among the `top_k` and in the smallest set of `top_p`.

    A threshold rather than a choice of tokens: equal logits have no order that would be the same
    in every batch, so all equals of the least one stay. The `width` likeliest tokens are looked at, and on
    the CPU all of them if those do not weigh enough for a row without `top_k`, of which there are some if it
    `needs_more`.
    """
    vocab_size = logits_RV.shape[1]
    has_k_R1 = (top_k_R1 > 0) & (top_k_R1 < vocab_size)
    if width < vocab_size:
        best_RW = logits_RV.topk(width, dim=-1).values
    else:
        best_RW, width = _sorted(logits_RV), vocab_size
    beyond_RW = has_k_R1 & (torch.arange(width, device=logits_RV.device) >= top_k_R1)
    best_RW.masked_fill_(beyond_RW, float("-inf"))
    total_R1 = best_RW.logsumexp(-1, keepdim=True)
    is_partial = width < vocab_size and needs_more
    if is_partial:
        total_R1 = torch.where(has_k_R1, total_R1, logits_RV.logsumexp(-1, keepdim=True))
    weight_RW = (best_RW - total_R1).exp()
    sum_RW = weight_RW.cumsum(-1)
    if is_partial and not (has_k_R1 | (sum_RW[:, -1:] >= top_p_R1)).all():
        return _least_kept(logits_RV, top_k_R1, top_p_R1, vocab_size, needs_more=True)
    kept_RW = ~beyond_RW & ((sum_RW - weight_RW < top_p_R1) | (top_p_R1 >= 1))
    # The likeliest token stays whatever `top_p` is.
    return best_RW.gather(1, kept_RW.sum(-1, keepdim=True).clamp_(min=1) - 1)


def _sorted(logits_RV: Tensor) -> Tensor:
    """The logits of each row, the largest first. On a CPU by numpy, in a tenth of torch's time or less."""
    if logits_RV.device.type != "cpu":
        return logits_RV.sort(dim=-1, descending=True).values
    negative_RV = -logits_RV.numpy()
    negative_RV.sort(axis=-1)
    return torch.from_numpy(negative_RV).neg_()
