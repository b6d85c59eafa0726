"""Choosing the next token of every sampling request of a step, from the logits.

Law: rows know nothing of each other. A row whose logits are not numbers, or whose choosing raises,
fails alone, and the tokens of the others are what they would have been without it.

Shapes: R requests that sample in this step, V tokens of the vocabulary.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from runtime.choices import Choices

# Enough of the likeliest tokens to hold most requests' `top_p`, cheap against sorting them all.
FEW_TOKENS = 1024
# A fault of the machine is a fault of all rows.
MACHINE_ERRORS = (torch.OutOfMemoryError, torch.AcceleratorError, MemoryError)
NO_TOKEN = "no token can be chosen: its logits are infinite, not numbers, or all ruled out"


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token for each of R rows; `failed` says of a row why it has none, and 0 stands in its place."""

    tokens: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)


def sample(logits_RV: Tensor, choices: Choices | None) -> Sampled:
    """One token a row; with `choices` None the likeliest. May write into the logits."""
    if choices is None:
        return _sampled(*_likeliest(logits_RV))
    failed = dict(choices.failed)
    try:
        sampled = _choose(logits_RV, choices)
    except MACHINE_ERRORS:
        raise
    except Exception:  # a row whose parameters raise ends alone
        failed |= _raising(logits_RV, choices)
        kept = np.array([row for row in range(len(logits_RV)) if row not in failed], np.int64)
        part = _choose(logits_RV[torch.from_numpy(kept)], choices.of(kept)) if len(kept) else Sampled()
        tokens = dict(zip(kept.tolist(), part.tokens, strict=True))
        sampled = Sampled(
            [tokens.get(row, 0) for row in range(len(logits_RV))],
            {int(kept[row]): reason for row, reason in part.failed.items()},
        )
    return Sampled(sampled.tokens, sampled.failed | failed)


def _raising(logits_RV: Tensor, choices: Choices) -> dict[int, str]:
    """The rows that raise when they are sampled alone, and what they raise; raises if none does."""
    found = {}
    for row in range(len(logits_RV)):
        try:
            _choose(logits_RV[row : row + 1].clone(), choices.of(np.array([row])))
        except MACHINE_ERRORS:
            raise
        except Exception as error:  # as above
            found[row] = f"its token cannot be chosen: {error}"
    if not found:
        raise RuntimeError("sampling fails for all rows together and for none alone")
    return found


def _choose(logits_RV: Tensor, choices: Choices) -> Sampled:
    vocab_size = logits_RV.shape[1]
    for row, token_ids in choices.banned:
        # Ids outside the vocabulary cannot be chosen anyway.
        logits_RV[row, [token for token in token_ids if 0 <= token < vocab_size]] = float("-inf")
    best_R, token_R = _likeliest(logits_RV)
    drawn = np.flatnonzero((choices.temperature_R > 0) & best_R.isfinite().cpu().numpy())
    if drawn.size == len(token_R):
        token_R = _draw(logits_RV.float(), best_R.float(), choices)
    elif drawn.size:
        rows = torch.from_numpy(drawn).to(logits_RV.device)
        token_R[rows] = _draw(logits_RV[rows].float(), best_R[rows].float(), choices.of(drawn))
    return _sampled(best_R, token_R)


def _sampled(best_R: Tensor, token_R: Tensor) -> Sampled:
    """Give a token to each row whose largest logit is a number."""
    if (sound_R := best_R.isfinite()).all():
        return Sampled(token_R.tolist())
    failed = {row: NO_TOKEN for row, sound in enumerate(sound_R.tolist()) if not sound}
    return Sampled(token_R.where(sound_R, 0).tolist(), failed)


def _likeliest(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row, NaN where one is, and its token."""
    # `max` takes the first of equals as `argmax` does, in a third of its time on the CPU.
    best = logits_RV.max(-1)
    return best.values, best.indices


def _draw(logits_RV: Tensor, best_R: Tensor, choices: Choices) -> Tensor:
    """A token for each row, by inverting the sum of the weights in the vocabulary's order."""
    device = logits_RV.device
    # From the largest down, so that no temperature makes an infinity of it.
    logits_RV = (logits_RV - best_R[:, None]) / torch.from_numpy(choices.temperature_R).to(device)[:, None]
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
