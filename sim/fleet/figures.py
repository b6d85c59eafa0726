"""Figures of a fleet whose engines are not all alike: its pools, and what went between them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """A pool of a run; `busy_fraction` is of its replicas' time until the last step of the fleet ended."""

    pool: str
    role: str
    replicas: int
    num_gpus: int
    num_kv_blocks: int
    busy_fraction: float
    kv_use_max: float


@dataclass(frozen=True, slots=True)
class TransferFigures:
    """The transfers of keys and values between pools; `mean_s` and `p99_s` are from Reserved to Fetched."""

    num_transfers: int
    num_tokens: int
    mean_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class MoveFigures:
    """The moves of requests from replica to replica; those with KV left while they ran.

    `mean_stop_s` is how long one that ran stood still for a move.
    """

    num_moves: int
    num_with_kv: int
    mean_stop_s: float


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """A fault that happened: `num_ended` requests ended with an engine, `num_again` began again elsewhere.

    `num_cancelled` are the clients that left; `replica` is None for what befalls all.
    """

    kind: str
    at_s: float
    replica: int | None
    num_ended: int = 0
    num_again: int = 0
    num_cancelled: int = 0


@dataclass(frozen=True, slots=True)
class PoolScalingFigures:
    """A pool that scaled by a scaler of its own; the fields are those of ScalingFigures."""

    pool: str
    gpu_hours: float
    all_gpu_hours: float
    num_starts: int
    changes: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class MissedAlone:
    """Prompts whose TTFT is above the `ttft_s` of a scaler when each has an engine to itself.

    The shortest has `from_tokens` tokens and takes `from_s` or longer.
    """

    ttft_s: float
    num_prompts: int
    num_missed: int
    from_tokens: int
    from_s: float

    def __str__(self) -> str:
        least = f"from {self.from_tokens:,} tokens on: {self.from_s:,.3f} s or more"
        return (
            f"{self.num_missed:,} of {self.num_prompts:,} prompts miss ttft_s={self.ttft_s:g} alone on an"
            f" engine, unless they are cached ({least}):"
            " attainment grows to the most for them, and no number of replicas helps"
        )


@dataclass(frozen=True, slots=True)
class ScalingFigures:
    """The GPU-hours of a fleet that scaled, from the first arrival to the last step, beside two others.

    `busy_gpu_hours` are those in which its engines computed: with the batches that there were, none needs
    fewer. `all_gpu_hours` are those of all replicas all the time. `changes` says when how many were wanted,
    of all pools that scale together; `pools` has each, if there are pools.
    """

    gpu_hours: float
    busy_gpu_hours: float
    all_gpu_hours: float
    mean_replicas: float
    num_starts: int
    changes: tuple[tuple[float, int], ...]
    pools: tuple[PoolScalingFigures, ...] = ()
    missed_alone: MissedAlone | None = None

    @property
    def share(self) -> float:
        """The GPUs that were paid for, as a share of all."""
        return self.gpu_hours / self.all_gpu_hours if self.all_gpu_hours else 1.0


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """The figures of a fleet whose engines are not all alike, or fail."""

    pools: tuple[PoolFigures, ...]
    transfers: TransferFigures | None
    faults: tuple[FaultFigures, ...] = ()
    scaling: ScalingFigures | None = None
    moves: MoveFigures | None = None
