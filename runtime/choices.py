"""How requests' tokens are chosen, as columns, so that a step only slices. Numbers only, no device.

Randomness has no state: the number that decides a token is a hash of the request's seed and the token's
position. So a seed gives the same stream whatever else is in the batch, and a preempted request goes on as if
nothing had happened.

Shapes: R requests that sample in this step.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actors.core.sampling import Sampling

GREEDY_BELOW = 1e-5
MOST_TEMPERATURE = float(np.finfo(np.float32).max)
MOST_INTEGER = int(np.iinfo(np.int64).max)
PLAIN = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Choices:
    """How the next tokens of R requests are chosen; `top_k_R` 0 is off, `banned` pairs row and tokens.

    `failed` says, by a row's number, why its request cannot sample at all.
    """

    temperature_R: NDArray[np.float32]
    top_k_R: NDArray[np.int64]
    top_p_R: NDArray[np.float32]
    uniform_R: NDArray[np.float64]
    banned: tuple[tuple[int, tuple[int, ...]], ...] = ()
    failed: tuple[tuple[int, str], ...] = ()

    def of(self, rows: NDArray[np.int64]) -> "Choices":
        """The choices of some of the rows, in this order."""
        banned, failed = dict(self.banned), dict(self.failed)
        return Choices(
            self.temperature_R[rows],
            self.top_k_R[rows],
            self.top_p_R[rows],
            self.uniform_R[rows],
            tuple((new, banned[old]) for new, old in enumerate(rows.tolist()) if old in banned),
            tuple((new, failed[old]) for new, old in enumerate(rows.tolist()) if old in failed),
        )


class SamplingRows:
    """The sampling parameters of all requests as columns, one row each.

    A request whose parameters cannot be read fails by itself: its row says why, and takes the likeliest token
    until it is forgotten.
    """

    def __init__(self, seed: int, eos_token_ids: tuple[int, ...], num_rows: int) -> None:
        self._seed = seed
        self._eos_token_ids = eos_token_ids
        self._temperature = np.zeros(num_rows, np.float32)
        self._top_k = np.zeros(num_rows, np.int64)
        self._top_p = np.ones(num_rows, np.float32)
        self._key = np.zeros(num_rows, np.uint64)
        self._min_position = np.zeros(num_rows, np.int64)
        self._ends: dict[int, tuple[int, ...]] = {}
        self._failed: dict[int, str] = {}

    def grow(self, num_rows: int) -> None:
        for name in ("_temperature", "_top_k", "_top_p", "_key", "_min_position"):
            column = getattr(self, name)
            setattr(self, name, np.resize(column, num_rows))

    def set(self, row: int, request_id: str, num_prompt_tokens: int, sampling: Sampling) -> None:
        """Note how the tokens of this request, now in `row`, are chosen."""
        self._failed.pop(row, None)
        try:
            self._read(row, request_id, num_prompt_tokens, sampling)
        except (ArithmeticError, TypeError, ValueError) as error:
            self._failed[row] = f"its sampling parameters cannot be used: {error}"
            self._read(row, request_id, num_prompt_tokens, PLAIN)

    def _read(self, row: int, request_id: str, num_prompt_tokens: int, sampling: Sampling) -> None:
        """Read the parameters; bounds here keep their meaning, as a number beyond one asks for the same."""
        if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
            raise ValueError(f"temperature is {sampling.temperature}")
        if math.isnan(sampling.top_p):
            raise ValueError("top_p is nan")
        greedy = sampling.temperature < GREEDY_BELOW
        self._temperature[row] = 0.0 if greedy else min(sampling.temperature, MOST_TEMPERATURE)
        self._top_k[row] = 0 if greedy else max(0, min(sampling.top_k or 0, MOST_INTEGER))
        self._top_p[row] = 1.0 if greedy else max(0.0, min(sampling.top_p, 1.0))
        own = f"seed {sampling.seed}"
        name = f"engine {self._seed} {request_id}" if sampling.seed is None else own
        self._key[row] = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
        self._min_position[row] = min(num_prompt_tokens + sampling.min_tokens, MOST_INTEGER)
        self._ends[row] = (*self._eos_token_ids, *sampling.stop_token_ids)

    def take(self, rows_R: NDArray[np.int64], position_R: NDArray[np.int64]) -> Choices | None:
        """The choices of these requests for their tokens at `position_R`; None if plain greedy."""
        temperature_R = self._temperature[rows_R]
        early_R = position_R < self._min_position[rows_R]
        failed: tuple[tuple[int, str], ...] = ()
        if self._failed:
            failed = tuple(
                (r, self._failed[row]) for r, row in enumerate(rows_R.tolist()) if row in self._failed
            )
        if not (failed or temperature_R.any() or early_R.any()):
            return None
        banned = tuple((int(r), self._ends[int(rows_R[r])]) for r in np.flatnonzero(early_R))
        return Choices(
            temperature_R,
            self._top_k[rows_R],
            self._top_p[rows_R],
            uniforms(self._key[rows_R], position_R),
            banned,
            failed,
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
