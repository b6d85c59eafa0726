"""Choosing the next token of every sampling request of a step.

Randomness has no state: the number that decides a token is a hash of the request's seed and the
token's position. So a seed gives the same stream whatever else is in the batch, and a preempted
request goes on as if nothing had happened.

Shapes: R requests that sample in this step, V tokens of the vocabulary.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.core.sampling import Sampling

GREEDY_BELOW = 1e-5
# Enough of the likeliest tokens to hold most requests' `top_p`, cheap against sorting them all.
FEW_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Choices:
    """How R requests want their next tokens; `top_k_R` 0 is off, `banned` pairs row and tokens."""

    temperature_R: NDArray[np.float32]
    top_k_R: NDArray[np.int64]
    top_p_R: NDArray[np.float32]
    uniform_R: NDArray[np.float64]
    banned: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def of(self, rows: NDArray[np.int64]) -> "Choices":
        """The choices of some of the rows, without their bans."""
        return Choices(self.temperature_R[rows], self.top_k_R[rows], self.top_p_R[rows], self.uniform_R[rows])


class SamplingRows:
    """The sampling parameters of all requests as columns, one row each, so that a step slices."""

    def __init__(self, seed: int, eos_token_ids: tuple[int, ...], num_rows: int) -> None:
        self._seed = seed
        self._eos_token_ids = eos_token_ids
        self._temperature = np.zeros(num_rows, np.float32)
        self._top_k = np.zeros(num_rows, np.int64)
        self._top_p = np.ones(num_rows, np.float32)
        self._key = np.zeros(num_rows, np.uint64)
        self._min_position = np.zeros(num_rows, np.int64)
        self._ends: dict[int, tuple[int, ...]] = {}

    def grow(self, num_rows: int) -> None:
        for name in ("_temperature", "_top_k", "_top_p", "_key", "_min_position"):
            column = getattr(self, name)
            setattr(self, name, np.resize(column, num_rows))

    def set(self, row: int, request_id: str, num_prompt_tokens: int, sampling: Sampling) -> None:
        greedy = sampling.temperature < GREEDY_BELOW
        self._temperature[row] = 0.0 if greedy else sampling.temperature
        self._top_k[row] = 0 if greedy else sampling.top_k or 0
        self._top_p[row] = 1.0 if greedy else sampling.top_p
        own = f"seed {sampling.seed}"
        name = f"engine {self._seed} {request_id}" if sampling.seed is None else own
        self._key[row] = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
        self._min_position[row] = num_prompt_tokens + sampling.min_tokens
        self._ends[row] = (*self._eos_token_ids, *sampling.stop_token_ids)

    def take(self, rows_R: NDArray[np.int64], position_R: NDArray[np.int64]) -> Choices | None:
        """The choices of these requests for their tokens at `position_R`; None if plain greedy."""
        temperature_R = self._temperature[rows_R]
        early_R = position_R < self._min_position[rows_R]
        if not temperature_R.any() and not early_R.any():
            return None
        banned = tuple((int(r), self._ends[int(rows_R[r])]) for r in np.flatnonzero(early_R))
        return Choices(
            temperature_R,
            self._top_k[rows_R],
            self._top_p[rows_R],
            uniforms(self._key[rows_R], position_R),
            banned,
        )


def uniforms(key_R: NDArray[np.uint64], position_R: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1): element `position` of the SplitMix64 stream that starts at `key`.

    SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    x_R = key_R + (position_R.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x_R = (x_R ^ (x_R >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x_R = (x_R ^ (x_R >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x_R ^= x_R >> np.uint64(31)
    u_R: NDArray[np.float64] = (x_R >> np.uint64(11)) * 2.0**-53
    return u_R


def sample(logits_RV: Tensor, choices: Choices | None) -> list[int]:
    """One token a row; with `choices` None the likeliest."""
    if choices is None:
        return _likeliest(logits_RV)
    for row, token_ids in choices.banned:
        logits_RV[row, list(token_ids)] = float("-inf")
    if choices.temperature_R.all():
        return _draw(logits_RV.float(), choices)
    drawn = np.flatnonzero(choices.temperature_R)
    token_R = np.array(_likeliest(logits_RV))
    if drawn.size:
        token_R[drawn] = _draw(logits_RV[torch.from_numpy(drawn)].float(), choices.of(drawn))
    tokens: list[int] = token_R.tolist()
    return tokens


def _likeliest(logits_RV: Tensor) -> list[int]:
    # `max` takes the first of equals as `argmax` does, in a third of its time on the CPU.
    tokens: list[int] = logits_RV.max(-1).indices.tolist()
    return tokens


def _draw(logits_RV: Tensor, choices: Choices) -> list[int]:
    """A token for each row, by inverting the sum of the weights in the vocabulary's order."""
    device = logits_RV.device
    logits_RV = logits_RV / torch.from_numpy(choices.temperature_R).to(device)[:, None]
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
    tokens: list[int] = torch.searchsorted(sum_RV, target_R1, right=True)[:, 0].tolist()
    return tokens


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
