"""Choosing the next token of every sampling request of a step, from the logits.

Law: rows know nothing of each other. A row whose logits are not numbers, or whose choosing raises,
fails alone, and the tokens of the others are what they would have been without it.

Shapes: R requests that sample in this step, V tokens of the vocabulary; D requests draw, and E have their
logits changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from actors.core.params.logprobs import TokenLogprobs
from runtime.sampling import edits
from runtime.sampling.choices import Choices, Columns, Likely
from runtime.sampling.draw import draw
from runtime.sampling.likeliest import likeliest
from runtime.sampling.logprobs import token_logprobs
from runtime.sampling.mask import Bitmasks

# A fault of the machine is a fault of all rows.
MACHINE_ERRORS = (torch.OutOfMemoryError, torch.AcceleratorError, MemoryError)
NOTHING_CHANGED: Mapping[int, Tensor] = {}
NO_TOKEN = "no token can be chosen: its logits are infinite, not numbers, or all ruled out"


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token for each of R rows; `failed` says of a row why it has none, and 0 stands in its place.

    `logprobs` are those of the rows that asked for them and have a token.
    """

    tokens: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


def sample(logits_RV: Tensor, choices: Choices | None, masks: Bitmasks | None = None) -> Sampled:
    """One token a row; with `choices` None the likeliest. Writes `masks` into the logits, else nothing."""
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
    """One token a row; a row that raises ends alone."""
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
    """The rows that raise when they are sampled alone, and what they raise; raises if none does."""
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
    """The likeliest token of greedy rows, a drawn one of others; `changed` rows replace those given."""
    drawn = np.flatnonzero(choices.temperature_R > 0)
    if drawn.size:
        row_D = torch.from_numpy(drawn).to(logits_RV.device)
        is_all = drawn.size == len(token_R)
        logits_DV = (logits_RV if is_all and not changed else logits_RV[row_D]).float()
        for d, row in enumerate(drawn.tolist() if changed else ()):
            if row in changed:
                logits_DV[d] = changed[row]
        own = choices if is_all else choices.of(drawn)
        columns = Columns.of(own, logits_RV.device)
        token_R[row_D] = draw(logits_DV, best_R[row_D].float(), own, columns)
    return _sampled(best_R, token_R)


def pick(logits_RV: Tensor, choices: Choices | None, columns: Columns | None) -> Tensor:
    """The tokens [R] of plain choices, -1 where there is none; on CUDA nothing waits for the device."""
    best_R, token_R = likeliest(logits_RV)
    if choices is not None and columns is not None:
        drawn_R = draw(logits_RV.float(), best_R.float(), choices, columns)
        token_R = torch.where(columns.temperature_R > 0, drawn_R, token_R)
    return torch.where(best_R.isfinite(), token_R, -1)


def named(tokens: list[int]) -> Sampled:
    """Those of `pick`, once they have come to the host."""
    failed = {row: NO_TOKEN for row, token in enumerate(tokens) if token < 0}
    return Sampled([max(token, 0) for token in tokens] if failed else tokens, failed)


def _logprobs(
    logits_RV: Tensor, wanted: list[tuple[int, Likely]], tokens: list[int]
) -> dict[int, TokenLogprobs]:
    """Those of the rows' tokens in the logits as the model gave them, and of others in their place."""
    if not wanted:
        return {}
    rows = [row for row, _ in wanted]
    is_all = len(rows) == len(logits_RV)
    logits_NV = logits_RV if is_all else logits_RV[torch.tensor(rows, device=logits_RV.device)]
    found = token_logprobs(logits_NV, [tokens[row] for row in rows], [likely for _, likely in wanted])
    return dict(zip(rows, found, strict=True))


def _sampled(best_R: Tensor, token_R: Tensor) -> Sampled:
    """Give a token to each row whose largest logit is a number."""
    return named(torch.where(best_R.isfinite(), token_R, -1).tolist())
