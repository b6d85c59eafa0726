"""TokenSource with drafts: the tokens per step and request, by the acceptance model.

O(decoding requests) a step.

Acceptance has no state: a hash of the seed, the request and the number of its tokens determines how many
drafts are proposed there and how many of them are accepted. So a run repeats itself byte for byte, and a
preempted request continues unchanged.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Protocol

from sundog.actors.config.speculative import Rates, SpeculativeConfig
from sundog.actors.core.batch import Batch
from sundog.actors.core.config import ConfigError
from sundog.actors.core.params.sampling import may_draft
from sundog.actors.core.records import dataclass
from sundog.sim.backend import SampledSteps, TokenSource

MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class AcceptanceModel:
    """Rates at which drafts up to each position are proposed, and accepted, per decoding request.

    Neither rate rises with the position, and only proposed drafts are accepted, so one uniform random number
    decides both. There is one pair of rates, or one per request of a record. A request named in the record
    uses its own pair. Any other request gets one by a hash, weighted by the number of tokens that each had:
    requests with accepted drafts need fewer steps, so unweighted sampling would overstate acceptance. The
    rates of a record are `shrunk`.
    """

    rates: tuple[tuple[Rates, Rates], ...]
    names: Mapping[str, int] = field(default_factory=dict)
    """Requests with rates of their own, and the index of each."""
    seed: int = 0
    bounds: tuple[float, ...] = ()
    """Cumulative share of the requests' tokens; empty if there is only one pair of rates."""

    @classmethod
    def of(cls, asked: SpeculativeConfig, seed: int = 0) -> "AcceptanceModel":
        """Return the model of `--speculative-config`; ConfigError if that is incomplete."""
        count, acceptance = asked.num_tokens, asked.acceptance
        if asked.measured is not None:
            names = {name: place for place, name in enumerate(asked.measured)}
            found = list(asked.measured.values())
            total = sum(each.num_tokens for each in found)
            bounds = tuple(tokens / total for tokens in accumulate(each.num_tokens for each in found))
            num_decodes = [each.num_decodes for each in found]
            proposed_of = shrunk([each.proposed for each in found], num_decodes)
            accepted_of = shrunk([each.accepted for each in found], num_decodes)
            rates = tuple(
                (proposed, tuple(map(min, accepted, proposed)))
                for proposed, accepted in zip(proposed_of, accepted_of, strict=True)
            )
            return cls(rates, names, seed, bounds)
        if acceptance is None:
            raise ConfigError(
                "--speculative-config: acceptance is missing, and a simulated GPU has no tokens to compare;"
                ' give "acceptance": 0.7, a rate for each position as a server logs them, or the folder of a'
                " record"
            )
        if isinstance(acceptance, str):
            raise ConfigError(f"--speculative-config: acceptance is {acceptance!r}: its record was not read")
        proposed = _rates(asked.proposed if asked.proposed is not None else (1.0,) * count, count)
        # What a server logs is relative to the times that it had any draft.
        accepted = tuple(rate * proposed[0] for rate in _rates(acceptance, count))
        return cls(((proposed, tuple(map(min, accepted, proposed))),), seed=seed)

    def key(self, request_id: str) -> tuple[int, int]:
        """Return a key of the request's random numbers, and of its rates."""
        digest = hashlib.blake2b(f"drafts {self.seed} {request_id}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big")
        place = self.names.get(request_id)
        if place is None:
            place = min(bisect_right(self.bounds, number / 2**64), len(self.rates) - 1)
        return number, place

    def draw(self, key: tuple[int, int], num_tokens: int) -> tuple[int, int]:
        """Return the drafts proposed, and accepted if all are verified, at this number of output tokens."""
        # SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
        number, place = key
        x = (number + (num_tokens + 1) * 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        below = 1.0 - ((x ^ (x >> 31)) >> 11) * 2.0**-53  # above 0, and 1 at most
        proposed, accepted = self.rates[place]
        return _count(proposed, below), _count(accepted, below)


def shrunk(measured: Sequence[Rates], num_decodes: Sequence[int]) -> list[Rates]:
    """Return the expected rates of each request, from those measured in its `num_decodes`.

    Rates from few decodes are mostly chance. So the request's own rates from n decodes have the weight n / (n
    + k), and the rates of all decodes k / (n + k): the mean of the Beta-binomial model, whose two moments
    give k = (1 - r) / r. Its r is the share of the variance of a decode's drafts that is between requests. It
    is 0 if they differ by no more than chance explains; then each request has the rates of all decodes.

    An answer ends when its tokens are complete, so that lucky requests have few decodes. Hence sums are
    compared rather than means: by Wald's second identity E[(S - n m)^2] = v E[n] for the drafts S of n
    decodes, however they ended, if requests are alike (m and v: the mean and variance of the drafts of a
    decode).
    """
    total = sum(num_decodes)
    pooled = tuple(
        sum(rate * count for rate, count in zip(position, num_decodes, strict=True)) / total
        for position in zip(*measured, strict=True)
    )
    mean = sum(pooled)
    variance = sum((2 * place + 1) * rate for place, rate in enumerate(pooled)) - mean * mean
    pairs = sum(count * count for count in num_decodes) - total
    if pairs == 0 or variance <= 1e-12:
        return [pooled] * len(measured)
    squares = sum(
        (count * (sum(rates) - mean)) ** 2 for rates, count in zip(measured, num_decodes, strict=True)
    )
    between = min(max((squares - total * variance) / (variance * pairs), 0.0), 1.0)
    weights = (count * between / (1 - between + count * between) for count in num_decodes)
    return [
        tuple(weight * own + (1 - weight) * all_ for own, all_ in zip(rates, pooled, strict=True))
        for rates, weight in zip(measured, weights, strict=True)
    ]


def _count(rates: tuple[float, ...], number: float) -> int:
    return bisect_right(rates, -number, key=lambda rate: -rate)


def _rates(given: float | tuple[float, ...], count: int) -> tuple[float, ...]:
    return given if isinstance(given, tuple) else tuple(given**position for position in range(1, count + 1))


Key = tuple[int, int]


class Future(Protocol):
    """Future tokens of requests, to which only the backend has access."""

    def length(self, request_id: str) -> int | None:
        """Return the number of tokens to come, the end token included; None: up to the limit."""
        ...

    def token(self, request_id: str, index: int) -> int | None:
        """Return the token of this index; None if tokens are only counted."""
        ...

    def forget(self, request_id: str) -> None:
        """Drop a request that ended."""
        ...


class Chances(Protocol):
    """Probabilities that drafts are proposed and accepted (`sundog.sim.speculated`)."""

    def key(self, request_id: str) -> Key:
        """Return a key of the request's random numbers."""
        ...

    def draw(self, key: Key, num_tokens: int) -> tuple[int, int]:
        """Return the drafts proposed, and accepted if all are verified, at this number of output tokens."""
        ...


class Lengths:
    """Future of a trace: a mapping of lengths, which is not copied; it `forgets` requests as an Oracle
    does.
    """

    def __init__(self, output_tokens: dict[str, int], *, forgets: bool = True) -> None:
        self._output_tokens, self._forgets = output_tokens, forgets

    def length(self, request_id: str) -> int | None:
        return self._output_tokens.get(request_id)

    def token(self, request_id: str, index: int) -> int | None:
        return None

    def forget(self, request_id: str) -> None:
        if self._forgets:
            self._output_tokens.pop(request_id, None)


class Texts:
    """Tokens of `tokens_of(request_id)`, then the end token."""

    def __init__(self, tokens_of: Callable[[str], Sequence[int]], eos_token_id: int) -> None:
        self._tokens_of, self._eos_token_id = tokens_of, eos_token_id

    def length(self, request_id: str) -> int | None:
        return None  # The scheduler sees the end token itself.

    def token(self, request_id: str, index: int) -> int | None:
        tokens = self._tokens_of(request_id)
        return tokens[index] if index < len(tokens) else self._eos_token_id

    def forget(self, request_id: str) -> None:
        """Do nothing: nothing is stored."""


class Speculated(TokenSource):
    """Source of a `future`'s tokens, several per step if a request's drafts are accepted."""

    __slots__ = ("_accepts", "_batch", "_chances", "_decoding", "_future", "_key", "_prefilling")

    def __init__(self, future: Future, chances: Chances) -> None:
        self._future, self._chances = future, chances
        self._prefilling: dict[str, int] = {}
        self._decoding: dict[str, int] = {}
        """Number of output tokens of each request that decodes."""
        self._key: dict[str, Key] = {}
        """Keys of requests that may have drafts."""
        self._accepts: dict[str, int] = {}
        """Number of each request's pending drafts that will be accepted."""
        self._batch = Batch(0)

    def begin(self, batch: Batch) -> int:
        """Apply the batch; return 1, because every batch is one step."""
        for request_id in batch.preempted:
            self._leave(request_id)
        for request_id in batch.finished:
            self._leave(request_id)
            self._future.forget(request_id)
        for admission in batch.admitted:
            name = admission.request_id
            self._prefilling[name] = admission.num_tokens - admission.num_prompt_tokens
            if may_draft(admission.sampling):
                self._key[name] = self._chances.key(name)
        for chunk in batch.chunks:
            if chunk.samples:
                self._decoding[chunk.request_id] = self._prefilling.pop(chunk.request_id)
        self._batch = batch
        return 1

    def sample(self, num_steps: int) -> SampledSteps:
        """Return the tokens of the step, as named or counted, and new drafts."""
        verified, idle = dict(self._batch.drafts), frozenset(self._batch.idle)
        tokens, ended, accepted, drafts, surplus = [], [], [], [], []
        for name, num_before in self._decoding.items():
            if name in idle:
                continue
            kept = self._accepts.pop(name, 0)
            gained = 1 + min(verified.get(name, 0), kept)
            length = self._future.length(name)
            if length is not None and num_before + gained >= length:
                sampled, gained = gained, max(length - num_before, 1)
                if sampled > gained:
                    surplus.append((name, sampled - gained))
                ended.append(name)
            self._decoding[name] = num_after = num_before + gained
            tokens += [(name, self._future.token(name, index)) for index in range(num_before, num_after)]
            if name in verified:
                accepted.append((name, gained - 1))
            if name in self._key:
                num_drafts, self._accepts[name] = self._chances.draw(self._key[name], num_after)
                if num_drafts:
                    drafts.append((name, num_drafts))
        named = [(name, token) for name, token in tokens if token is not None]
        return SampledSteps(
            tuple(named) if named else None,
            tuple(ended),
            tuple(accepted),
            tuple(drafts),
            surplus=tuple(surplus),
        )

    def _leave(self, request_id: str) -> None:
        for notes in (self._prefilling, self._decoding, self._key, self._accepts):
            notes.pop(request_id, None)
