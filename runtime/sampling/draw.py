"""Drawing tokens by weight, from what `min_p`, `top_k` and `top_p` leave.

Shapes: R requests that draw in this step, V tokens of the vocabulary, W the likeliest of them.
"""

import numpy as np
import torch
from torch import Tensor

from runtime.sampling.choices import Choices

# Enough of the likeliest tokens to hold most requests' `top_p`, cheap against sorting them all.
FEW_TOKENS = 1024


def draw(logits_RV: Tensor, best_R: Tensor, choices: Choices) -> Tensor:
    """A token for each row, by inverting the sum of the weights in the vocabulary's order."""
    device = logits_RV.device
    # From the largest down, so that no temperature makes an infinity of it.
    logits_RV = (logits_RV - best_R[:, None]) / torch.from_numpy(choices.temperature_R).to(device)[:, None]
    if choices.min_p_R.any():
        # A weight relative to the likeliest token's is e to its logit here.
        with np.errstate(divide="ignore"):
            least_R1 = torch.from_numpy(np.log(choices.min_p_R)).to(device)[:, None]
        logits_RV.masked_fill_(logits_RV < least_R1, float("-inf"))
    filters = np.flatnonzero((choices.top_k_R > 0) | (choices.top_p_R < 1))
    if filters.size:
        rows = torch.from_numpy(filters).to(device)
        least_R1 = logits_RV.new_full((len(logits_RV), 1), float("-inf"))
        least_R1[rows] = _least_kept(
            logits_RV if len(filters) == len(logits_RV) else logits_RV[rows],
            torch.from_numpy(choices.top_k_R[filters]).to(device)[:, None],
            torch.from_numpy(choices.top_p_R[filters]).to(device)[:, None],
            FEW_TOKENS,
        )
        logits_RV.masked_fill_(logits_RV < least_R1, float("-inf"))
    sum_RV = logits_RV.softmax(-1).cumsum(-1)
    total_R1 = sum_RV[:, -1:]
    target_R1 = total_R1 * torch.from_numpy(choices.uniform_R).to(device)[:, None]
    # Strictly below the total, so that the first sum above it belongs to a token with weight.
    most_R1 = torch.nextafter(total_R1, torch.zeros_like(total_R1))
    target_R1 = torch.minimum(target_R1.to(total_R1.dtype), most_R1)
    return torch.searchsorted(sum_RV, target_R1, right=True)[:, 0]


def _least_kept(logits_RV: Tensor, top_k_R1: Tensor, top_p_R1: Tensor, few: int) -> Tensor:
    """The least logit [R, 1] that is both among the `top_k` and in the smallest set of `top_p`.

    A threshold rather than a choice of tokens: equal logits have no order that would be the same
    in every batch, so all equals of the least one stay. Rows without `top_k` look at the `few`
    likeliest tokens first, and at all of them if those do not weigh enough.
    """
    vocab_size = logits_RV.shape[1]
    has_k_R1 = (top_k_R1 > 0) & (top_k_R1 < vocab_size)
    width = max(int(torch.where(has_k_R1, top_k_R1, 0).max()), 0 if has_k_R1.all() else few)
    if width < vocab_size:
        best_RW = logits_RV.topk(width, dim=-1).values
    else:
        best_RW, width = logits_RV.sort(dim=-1, descending=True).values, vocab_size
    beyond_RW = has_k_R1 & (torch.arange(width, device=logits_RV.device) >= top_k_R1)
    best_RW.masked_fill_(beyond_RW, float("-inf"))
    total_R1 = best_RW.logsumexp(-1, keepdim=True)
    if width < vocab_size and not has_k_R1.all():
        total_R1 = torch.where(has_k_R1, total_R1, logits_RV.logsumexp(-1, keepdim=True))
    weight_RW = (best_RW - total_R1).exp()
    sum_RW = weight_RW.cumsum(-1)
    if width < vocab_size and not (has_k_R1 | (sum_RW[:, -1:] >= top_p_R1)).all():
        return _least_kept(logits_RV, top_k_R1, top_p_R1, vocab_size)
    kept_RW = ~beyond_RW & ((sum_RW - weight_RW < top_p_R1) | (top_p_R1 >= 1))
    # The likeliest token stays whatever `top_p` is.
    return best_RW.gather(1, kept_RW.sum(-1, keepdim=True).clamp_(min=1) - 1)
