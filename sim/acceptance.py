"""Which drafts of a simulated engine are accepted, by given rates.

There is no state: a hash of the seed, the request and the number of its tokens decides how many drafts it
is proposed there and how many of them are accepted. So a run repeats itself byte for byte, and a request that
was preempted goes on as if nothing had happened.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from actors.config.speculative import Rates, SpeculativeConfig
from actors.core.config import ConfigError

MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class AcceptanceModel:
    """For each position, how often drafts up to there are proposed, and accepted, when a request decodes.

    Neither rises with the position, and accepted drafts were proposed: one number from 0 to 1 decides both.
    There is one pair of such rates, or one of each request of a record: a request of the same name has its
    own, any other one that a hash picks, for requests are not alike.
    """

    rates: tuple[tuple[Rates, Rates], ...]
    names: Mapping[str, int] = field(default_factory=dict)
    """Whose rates these are, by their place."""
    seed: int = 0

    @classmethod
    def of(cls, asked: SpeculativeConfig, seed: int = 0) -> "AcceptanceModel":
        """As `--speculative-config` says; ConfigError where it does not say enough."""
        count, acceptance = asked.num_tokens, asked.acceptance
        if asked.measured is not None:
            names = {name: place for place, name in enumerate(asked.measured)}
            return cls(tuple(asked.measured.values()), names, seed)
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
        """What tells the request's numbers from those of others, and whose rates it has."""
        digest = hashlib.blake2b(f"drafts {self.seed} {request_id}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big")
        return number, self.names.get(request_id, number % len(self.rates))

    def draw(self, key: tuple[int, int], num_tokens: int) -> tuple[int, int]:
        """Drafts proposed, and accepted if all are verified, of a request that has so many output tokens."""
        # SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
        number, place = key
        x = (number + (num_tokens + 1) * 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        below = 1.0 - ((x ^ (x >> 31)) >> 11) * 2.0**-53  # above 0, and 1 at most
        proposed, accepted = self.rates[place]
        return _count(proposed, below), _count(accepted, below)


def _count(rates: tuple[float, ...], number: float) -> int:
    """How many of the rates, which fall, the number does not exceed."""
    return bisect_right(rates, -number, key=lambda rate: -rate)


def _rates(given: float | tuple[float, ...], count: int) -> tuple[float, ...]:
    """The chance of the drafts up to each position: a number is that of each if those before it held."""
    return given if isinstance(given, tuple) else tuple(given**position for position in range(1, count + 1))
