"""Log probabilities of chosen tokens, and of the likeliest alternatives.

Shapes: N rows, V tokens of the vocabulary, K the most alternatives of any row.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sundog.actors.core.params.logprobs import TokenLogprobs
from sundog.runtime.sampling.choices import Likely

MOST_LOGITS = 2**23
"""Most logits at a time: 32 MiB in float32, whatever the number of rows."""


def token_logprobs(
    logits_NV: Tensor, token_ids: Sequence[int], likely: Sequence[Likely]
) -> list[TokenLogprobs]:
    """Return each row's log probabilities of its token, and of the likeliest or given ones. O(N × V)."""
    size = max(1, MOST_LOGITS // logits_NV.shape[1])
    found: list[TokenLogprobs] = []
    for start in range(0, len(logits_NV), size):
        part = slice(start, start + size)
        found += _part(logits_NV[part], token_ids[part], likely[part])
    return found


def _part(logits_NV: Tensor, token_ids: Sequence[int], likely: Sequence[Likely]) -> list[TokenLogprobs]:
    logprob_NV = logits_NV.log_softmax(-1, dtype=torch.float32)
    token_N1 = torch.tensor(token_ids, device=logits_NV.device)[:, None]
    own_N1 = logprob_NV.gather(1, token_N1)
    ranks = _ranks(logprob_NV, own_N1)
    own = own_N1[:, 0].tolist()
    most = max([k for k in likely if isinstance(k, int)], default=0)
    # One more shows whether the last is as likely as the next.
    top_NK = logprob_NV.topk(min(most + 1, logits_NV.shape[1]), dim=-1)
    ids, values = top_NK.indices.tolist(), top_NK.values.tolist()
    found = []
    for n, (token, k) in enumerate(zip(token_ids, likely, strict=True)):
        if isinstance(k, int):
            beside = tuple(_in_order(logprob_NV[n], ids[n], values[n], k)), tuple(values[n][:k])
        else:
            beside = k, tuple(logprob_NV[n, list(k)].tolist())
        found.append(TokenLogprobs(token, own[n], ranks[n], *beside))
    return found


def _in_order(logprob_V: Tensor, ids: list[int], values: list[float], k: int) -> list[int]:
    """Return the k likeliest tokens, ties by token id: which of them `ids` has depends on the batch. O(V)."""
    last = values[min(k, len(values)) - 1]
    if math.isnan(last) or all(one > other for one, other in pairwise(values[: k + 1])):
        return ids[:k]
    above = (logprob_V > last).nonzero()[:, 0]
    equal = (logprob_V == last).nonzero()[: k - len(above), 0]
    order = logprob_V[above].argsort(descending=True, stable=True)
    return [*above[order].tolist(), *equal.tolist()]


def _ranks(logprob_NV: Tensor, own_N1: Tensor) -> list[int]:
    if logprob_NV.device.type == "cpu":  # in a ninth of torch's time
        pairs = zip(logprob_NV.numpy(), own_N1.numpy(), strict=True)
        return [int(np.count_nonzero(logprob_V >= own)) for logprob_V, own in pairs]
    ranks: list[int] = (logprob_NV >= own_N1).sum(-1).tolist()
    return ranks
