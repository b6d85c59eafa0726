"""Sampler: chooses the next token of every sampling request of a step, from the logits.

Law: rows are independent. A row whose logits are not numbers, or whose sampling raises, fails alone, and the
others get the same tokens as without it.

Greedy rows take the token of the largest logit. On the CPU numpy finds it with vector instructions, in half
of torch's time (32 rows of 151,936, one thread of an EPYC with AVX-512: 2.9 ms of 6.8 in float32, 3.0 of 6.5
in bf16). The others are sampled by weight from what `min_p`, `top_k` and `top_p` leave. Tokens allowed by a
grammar come as bits, the format of grammar engines.

Shapes: R requests that sample in this step, V tokens of the vocabulary; D requests draw, and E have their
logits changed; M rows have a mask of W words of 32 tokens each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sundog.actors.core.params.logprobs import TokenLogprobs
from sundog.runtime.sampling import edits
from sundog.runtime.sampling.choices import Choices, Likely, SamplingColumns
from sundog.runtime.sampling.logprobs import token_logprobs

# Enough of the likeliest tokens to hold most requests' `top_p`, cheap against sorting them all.
FEW_TOKENS = 1024


def draw(logits_RV: Tensor, best_R: Tensor, choices: Choices, columns: SamplingColumns) -> Tensor:
    """Sample a token for each row, by inverting the sum of the weights in the vocabulary's order.

    The host uses only `choices`: on CUDA nothing here waits for the device. A row with temperature 0 is
    sampled at temperature 1.
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


def _least(
    logits_RV: Tensor, choices: Choices, columns: SamplingColumns, is_filtered_R: NDArray[np.bool_]
) -> Tensor:
    """Return the smallest logit [R, 1] that `top_k` and `top_p` keep; minus infinity for a row without
    either.
    """
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
    """Return the least logit [R, 1] that is both among the `top_k` and in the smallest set of `top_p`.

    A threshold rather than a set of tokens: equal logits have no order that would be the same in every batch,
    so all ties of the least one stay. Only the `width` likeliest tokens are examined. With `needs_more` there
    are rows without `top_k`: if those tokens do not have enough weight for such a row, the CPU examines all.
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
    """Sort the logits of each row, the largest first; on a CPU by numpy, in a tenth of torch's time or
    less.
    """
    if logits_RV.device.type != "cpu":
        return logits_RV.sort(dim=-1, descending=True).values
    negative_RV = -logits_RV.numpy()
    negative_RV.sort(axis=-1)
    return torch.from_numpy(negative_RV).neg_()


MINUS_INFINITY_BITS = 0xFF80
"""Bits of bf16's minus infinity, as an unsigned integer: only negative NaNs are above it."""


def likeliest(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each row, NaN if there is one, and its token: the first of equals."""
    token_R = _by_numpy(logits_RV) if logits_RV.device.type == "cpu" else None
    if token_R is None:
        # `max` takes the first of equals as `argmax` does, in a third of its time on the CPU.
        best = logits_RV.max(-1)
        return best.values, best.indices
    return logits_RV.gather(1, token_R[:, None])[:, 0], token_R


def _by_numpy(logits_RV: Tensor) -> Tensor | None:
    if logits_RV.dtype == torch.float32:
        return torch.from_numpy(logits_RV.numpy().argmax(-1))
    if logits_RV.dtype != torch.bfloat16:
        return None
    # As integers, numbers above 0 keep their order, and all others are below them.
    bits_RV = logits_RV.view(torch.int16).numpy()
    token_R = bits_RV.argmax(-1)
    is_above_0 = (np.take_along_axis(bits_RV, token_R[:, None], 1) > 0).all()
    is_known = is_above_0 and (bits_RV.view(np.uint16).max(-1) <= MINUS_INFINITY_BITS).all()
    return torch.from_numpy(token_R) if is_known else None


@dataclass(frozen=True, slots=True)
class Bitmasks:
    """Allowed tokens of the rows `row_M`, as bits.

    Bit t % 32 of `word_MW[:, t // 32]`, counted from the lowest, is 1 if token t is allowed. Tokens beyond
    the last word are not allowed.
    """

    row_M: NDArray[np.int64]
    word_MW: NDArray[np.int32]

    def apply(self, logits_RV: Tensor) -> None:
        """Set logits of tokens that are not allowed to minus infinity, in place. O(M × V)."""
        vocab_size = logits_RV.shape[1]
        words_MW = np.ascontiguousarray(self.word_MW).view(np.uint8)
        allowed_MV = np.unpackbits(words_MW, axis=1, count=vocab_size, bitorder="little")
        is_out_MV = torch.from_numpy(allowed_MV == 0).to(logits_RV.device)
        if len(self.row_M) == len(logits_RV) and (self.row_M == np.arange(len(logits_RV))).all():
            logits_RV.masked_fill_(is_out_MV, float("-inf"))
            return
        for row, is_out_V in zip(self.row_M.tolist(), is_out_MV, strict=True):
            logits_RV[row].masked_fill_(is_out_V, float("-inf"))


# A fault of the machine is a fault of all rows.
MACHINE_ERRORS = (torch.OutOfMemoryError, torch.AcceleratorError, MemoryError)
NOTHING_CHANGED: Mapping[int, Tensor] = {}
NO_TOKEN = "no token can be chosen: its logits are infinite, not numbers, or all ruled out"


@dataclass(frozen=True, slots=True)
class Sampled:
    """Token for each of R rows; `failed` has the reasons of rows without one, which hold 0.

    `logprobs` are those of the rows that requested them and have a token.
    """

    tokens: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


def sample(logits_RV: Tensor, choices: Choices | None, masks: Bitmasks | None = None) -> Sampled:
    """Return a token for each row; with `choices` None the likeliest. Applies `masks` to the logits."""
    if masks is not None:
        masks.apply(logits_RV)
    if choices is None:
        return _sampled(*likeliest(logits_RV))
    sampled = _isolated(logits_RV, choices)
    if not choices.logprobs:
        return sampled
    wanted = [(row, num_top) for row, num_top in choices.logprobs if row not in sampled.failed]
    return replace(sampled, logprobs=_logprobs(logits_RV, wanted, sampled.tokens))


def _isolated(logits_RV: Tensor, choices: Choices) -> Sampled:
    failed = dict(choices.failed)
    try:
        sampled = _choose(logits_RV, choices)
    except MACHINE_ERRORS:
        raise
    except Exception:  # whatever a row's parameters raise
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
    found = {}
    for row in range(len(logits_RV)):
        try:
            _choose(logits_RV[row : row + 1], choices.of(np.array([row])))
        except MACHINE_ERRORS:
            raise
        except Exception as error:  # as above
            found[row] = f"its token cannot be chosen: {error}"
    if not found:
        raise RuntimeError("sampling fails for all rows together and for none alone")
    return found


def _choose(logits_RV: Tensor, choices: Choices) -> Sampled:
    if not choices.edits:
        return _pick(logits_RV, *likeliest(logits_RV), choices)
    row_E = torch.tensor([row for row, _ in choices.edits], device=logits_RV.device)
    logits_EV = logits_RV[row_E].float()  # a copy, whatever they are
    edits.apply(logits_EV, [edit for _, edit in choices.edits])
    best_E, token_E = likeliest(logits_EV)
    if len(row_E) == len(logits_RV):
        return _pick(logits_EV, best_E, token_E, choices)
    best_R, token_R = likeliest(logits_RV)
    best_R = best_R.float()
    best_R[row_E], token_R[row_E] = best_E, token_E
    return _pick(logits_RV, best_R, token_R, choices, dict(zip(row_E.tolist(), logits_EV, strict=True)))


def _pick(
    logits_RV: Tensor,
    best_R: Tensor,
    token_R: Tensor,
    choices: Choices,
    changed: Mapping[int, Tensor] = NOTHING_CHANGED,
) -> Sampled:
    """Return the likeliest token of each greedy row, and a sampled one for the others; `changed` rows replace
    those given.
    """
    drawn = np.flatnonzero(choices.temperature_R > 0)
    if drawn.size:
        row_D = torch.from_numpy(drawn).to(logits_RV.device)
        is_all = drawn.size == len(token_R)
        logits_DV = (logits_RV if is_all and not changed else logits_RV[row_D]).float()
        for d, row in enumerate(drawn.tolist() if changed else ()):
            if row in changed:
                logits_DV[d] = changed[row]
        own = choices if is_all else choices.of(drawn)
        columns = SamplingColumns.of(own, logits_RV.device)
        token_R[row_D] = draw(logits_DV, best_R[row_D].float(), own, columns)
    return _sampled(best_R, token_R)


def pick(logits_RV: Tensor, choices: Choices | None, columns: SamplingColumns | None) -> Tensor:
    """Return the tokens [R] of plain choices, -1 for none; on CUDA without waiting for the device."""
    best_R, token_R = likeliest(logits_RV)
    if choices is not None and columns is not None:
        drawn_R = draw(logits_RV.float(), best_R.float(), choices, columns)
        token_R = torch.where(columns.temperature_R > 0, drawn_R, token_R)
    return torch.where(best_R.isfinite(), token_R, -1)


def named(tokens: list[int]) -> Sampled:
    """Return what `pick` chose, once the tokens have come to the host."""
    failed = {row: NO_TOKEN for row, token in enumerate(tokens) if token < 0}
    return Sampled([max(token, 0) for token in tokens] if failed else tokens, failed)


def _logprobs(
    logits_RV: Tensor, wanted: list[tuple[int, Likely]], tokens: list[int]
) -> dict[int, TokenLogprobs]:
    if not wanted:
        return {}
    rows = [row for row, _ in wanted]
    is_all = len(rows) == len(logits_RV)
    logits_NV = logits_RV if is_all else logits_RV[torch.tensor(rows, device=logits_RV.device)]
    found = token_logprobs(logits_NV, [tokens[row] for row in rows], [likely for _, likely in wanted])
    return dict(zip(rows, found, strict=True))


def _sampled(best_R: Tensor, token_R: Tensor) -> Sampled:
    return named(torch.where(best_R.isfinite(), token_R, -1).tolist())
