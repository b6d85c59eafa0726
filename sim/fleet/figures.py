"""Figures of a fleet with unequal or failing engines: its pools, and transfers between them."""

from sundog.actors.core.records import dataclass


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """Figures of a pool; `busy_fraction` refers to its replicas' time until the fleet's last step ended."""

    pool: str
    role: str
    replicas: int
    num_gpus: int
    num_kv_blocks: int
    busy_fraction: float
    kv_use_max: float


@dataclass(frozen=True, slots=True)
class TransferFigures:
    """Transfers of keys and values between pools; `mean_s` and `p99_s` are from Reserved to Fetched."""

    num_transfers: int
    num_tokens: int
    mean_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class MoveFigures:
    """Moves of requests between replicas; those with KV moved while they ran.

    `mean_stop_s` is the mean time for which a move stopped a running request.
    """

    num_moves: int
    num_with_kv: int
    mean_stop_s: float


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """Fault that happened: `num_ended` requests ended with an engine, `num_again` began again elsewhere.

    `num_cancelled` is the number of clients that left; `replica` is None for faults of the whole fleet.
    """

    kind: str
    at_s: float
    replica: int | None
    num_ended: int = 0
    num_again: int = 0
    num_cancelled: int = 0


@dataclass(frozen=True, slots=True)
class PoolScalingFigures:
    """Pool with a scaler of its own; the fields are those of ScalingFigures."""

    pool: str
    gpu_hours: float
    all_gpu_hours: float
    num_starts: int
    changes: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class MissedAlone:
    """Prompts whose TTFT exceeds the `ttft_s` of a scaler even alone on an engine.

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
    """GPU-hours of a fleet that scaled, from the first arrival to the last step, and two bounds.

    `busy_gpu_hours` are those in which its engines computed: with these batches no scaler needs fewer.
    `all_gpu_hours` are those of all replicas over the whole time. `changes` has the times and numbers of
    wanted replicas, of all scaling pools together; `pools` has each pool, if there are any.
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
        """Paid GPUs as a share of all."""
        return self.gpu_hours / self.all_gpu_hours if self.all_gpu_hours else 1.0


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Figures of a fleet with engines that differ or fail."""

    pools: tuple[PoolFigures, ...]
    transfers: TransferFigures | None
    faults: tuple[FaultFigures, ...] = ()
    scaling: ScalingFigures | None = None
    moves: MoveFigures | None = None
