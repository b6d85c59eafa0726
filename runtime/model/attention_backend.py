"""Attention kernel of a device, chosen when a model is loaded.

Each kernel is first tried on a few random keys, and used only if it agrees with gathering.

Shapes: T tokens of the step; N requests, R of them behind the decodes.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sundog.runtime.attention import Special, varlen
from sundog.runtime.attention.decoding import DecodeAttention, Decodes, by_gathering, by_kernel
from sundog.runtime.attention.groups import Group
from sundog.runtime.attention.paged_cache import PagedKVCache
from sundog.runtime.attention.step import PagedStep
from sundog.runtime.attention.varlen import Sequences, attend_all, can_attend
from sundog.runtime.checkpoint.facts import first_line
from sundog.runtime.device.inputs import Inputs
from sundog.runtime.step.step import Span

_LOG = logging.getLogger("sundog.attention")
APART = 0.02
"""Largest allowed difference from gathering, relative to the size of the output; bf16 rounds to 0.004."""
TRIED_KEYS = (1, 40, 77)
TRIED_WINDOW = 12
TRIED_SOFTCAP = 20.0


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """Kernel for decodes (None: gathered, grouped by length), and whether one call computes the other
    rows.
    """

    decode: DecodeAttention | None = None
    has_varlen: bool = False
    reads_tables: bool = False

    @property
    def words(self) -> str:
        """Name of the kernel in a few words."""
        if self.decode is not None:
            return f"a Triton kernel, prompts by {'varlen_attn' if self.has_varlen else 'torch'}"
        return "varlen_attn" if self.has_varlen else "torch on gathered keys"

    @property
    def is_static(self) -> bool:
        """Whether the host's work in a step of decodes does not depend on lengths."""
        return self.decode is not None

    def step(self, cache: PagedKVCache, inputs: Inputs[Tensor], spans: tuple[Span, ...]) -> PagedStep:
        """Return the attention of a step with these spans."""
        num_decodes = sum(len(s.first_position_N) for s in spans[: _num_leading(spans)]) if self.decode else 0
        rest = spans[_num_leading(spans) :] if num_decodes else spans
        sequences = None
        if self.has_varlen and (self.reads_tables or rest):
            sequences = _sequences(inputs, *((0, spans) if self.reads_tables else (num_decodes, rest)))
        decodes = None
        if num_decodes:
            decodes = Decodes(inputs.table_NB[:num_decodes], inputs.num_keys_N[:num_decodes])
        return PagedStep(
            cache,
            inputs.slot_T,
            groups=_groups(inputs, num_decodes, rest, cache.block_size),
            decodes=decodes,
            decode=self.decode or by_gathering,
            sequences=sequences,
            covers_all=self.reads_tables,
        )


def _num_leading(spans: tuple[Span, ...]) -> int:
    """Count the spans before the first with more than one token per request."""
    return next((at for at, span in enumerate(spans) if span.num_queries > 1), len(spans))


def _groups(inputs: Inputs[Tensor], start: int, spans: tuple[Span, ...], block_size: int) -> list[Group]:
    groups = []
    for span in spans:
        end = start + len(span.first_position_N)
        first_N1 = inputs.num_keys_N[start:end, None].long() - span.num_queries
        position_NQ = first_N1 + torch.arange(span.num_queries, device=first_N1.device)
        is_fresh = end - start == 1 and int(span.first_position_N[0]) == 0
        table_NB = inputs.table_NB[start:end, : span.table_NB.shape[1]].long()
        groups.append(
            Group(span.start, table_NB, positions_NQ=position_NQ, block_size=block_size, fresh=is_fresh)
        )
        start = end
    return groups


def _sequences(inputs: Inputs[Tensor], start: int, spans: tuple[Span, ...]) -> Sequences:
    last_keys = [int(span.first_position_N.max()) + span.num_queries for span in spans]
    return Sequences(
        inputs.first_query_N1[start:] - inputs.first_query_N1[start],
        inputs.first_key_N1[start:] - inputs.first_key_N1[start],
        inputs.num_keys_N[start:],
        inputs.table_NB[start:],
        max_queries=max(span.num_queries for span in spans),
        max_keys=max(last_keys),
        num_keys=sum(int((s.first_position_N + s.num_queries).sum()) for s in spans),
    )


def choose(cache: PagedKVCache) -> AttentionBackend:
    """Return the best kernel of this cache's device that computes correctly, and log it."""
    if cache.keys_SPKD[0].device.type != "cuda":
        return AttentionBackend()
    layers = {shape: layer for layer, shape in reversed(list(enumerate(cache.shapes)))}
    trials = [AttentionTrial(cache, layer) for layer in layers.values()]
    has_kernel = all(trial.passes("the Triton kernel", trial.decoded) for trial in trials)
    decode = by_kernel if has_kernel else None
    has_varlen = varlen.is_available() and all(trial.passes("varlen_attn", trial.called) for trial in trials)
    reads_tables = has_varlen and varlen.reads_tables(cache.block_size)
    by_call = "varlen_attn through block tables" if reads_tables else "varlen_attn on copied keys"
    _LOG.info(
        "attention: decodes by %s, other rows by %s",
        by_call if reads_tables else "the Triton kernel" if decode else "gathering",
        by_call if has_varlen else "gathering",
    )
    return AttentionBackend(decode, has_varlen, reads_tables)


class AttentionTrial:
    """Random keys of one layer's kind in scattered blocks, and queries of a few requests."""

    def __init__(self, cache: PagedKVCache, layer: int = 0) -> None:
        keys, values, shape = cache.keys_SPKD[layer], cache.values_SPKE[layer], cache.shapes[layer]
        num_blocks = -(-max(TRIED_KEYS) // cache.block_size)
        num_all = len(TRIED_KEYS) * num_blocks + 1
        self.keys_SPKD = torch.randn(num_all, *keys.shape[1:], device=keys.device).to(keys.dtype)
        self.values_SPKE = torch.randn(num_all, *values.shape[1:], device=keys.device).to(keys.dtype)
        tables = (torch.randperm(num_all - 1) + 1).view(len(TRIED_KEYS), num_blocks)
        num_keys = torch.tensor(TRIED_KEYS, dtype=torch.int32)
        self.decodes = Decodes(tables.int().to(keys.device), num_keys.to(keys.device))
        num_heads = shape.num_query_heads or 2 * keys.shape[2]
        self.q_NHD = torch.randn(len(TRIED_KEYS), num_heads, keys.shape[3], device=keys.device).to(keys.dtype)
        exact = (self.q_NHD.float(), self.keys_SPKD.float(), self.values_SPKE.float())
        sinks_H = torch.randn(num_heads, device=keys.device).to(keys.dtype) if shape.has_sinks else None
        self._special = Special(
            scaling=0.1,
            window=TRIED_WINDOW if shape.has_window else None,
            softcap=TRIED_SOFTCAP if shape.has_softcap else None,
            sinks_H=sinks_H,
        )
        self.expected = by_gathering(self.decodes, *exact, **self._special)

    def decoded(self) -> Tensor:
        """Compute with the kernel, whole and in splits."""
        out = self.expected
        for num_splits in (4, 1):
            given = (self.decodes, self.q_NHD, self.keys_SPKD, self.values_SPKE)
            out = by_kernel(*given, **self._special, num_splits=num_splits)
            if not self._is_right(out):
                break
        return out

    def called(self) -> Tensor:
        """Compute with torch's call, with each request's last token as its only query."""
        special = self._special
        is_plain = special["softcap"] is None and special["sinks_H"] is None
        if not is_plain or not can_attend(self.q_NHD, self.values_SPKE):
            return self.expected  # it will not be asked
        starts = torch.tensor([0, *TRIED_KEYS]).cumsum(0).int().to(self.q_NHD.device)
        sequences = Sequences(
            torch.arange(len(TRIED_KEYS) + 1, dtype=torch.int32, device=self.q_NHD.device),
            starts,
            self.decodes.num_keys_N,
            self.decodes.table_NB,
            max_queries=1,
            max_keys=max(TRIED_KEYS),
            num_keys=sum(TRIED_KEYS),
        )
        given = (sequences, self.q_NHD, self.keys_SPKD, self.values_SPKE)
        return attend_all(*given, special["scaling"], special["window"])

    def passes(self, name: str, attend: Callable[[], Tensor]) -> bool:
        """Return whether it agrees with gathering; log why not."""
        try:
            is_right, reason = self._is_right(attend()), "it answers otherwise"
        except Exception as error:  # whatever a compiler, a driver or a kernel raises
            is_right, reason = False, first_line(error)
        if not is_right:
            _LOG.warning("attention: keys are gathered instead of read by %s: %s", name, reason)
        return is_right

    def _is_right(self, out: Tensor) -> bool:
        apart = (out.float() - self.expected).norm()
        return bool(apart <= APART * self.expected.norm())
