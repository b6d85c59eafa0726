"""Collectives of a replica's ranks over torch.distributed: gloo, or NCCL on CUDA.

Law: every rank takes the same steps in the same order, so their collectives match. A rank that fails or dies
breaks the group: collectives of the others raise (gloo), or their processes are ended by their watcher
(`runtime/worker/ranks.py`).

Shapes: R sampling rows of a step.
"""

import os
from datetime import timedelta

import psutil  # type: ignore[import-untyped]  # ships no types
import torch
import torch.distributed as dist
from torch import Tensor

from sundog.actors.core.config import ConfigError
from sundog.runtime.ranks.rank import LOOPBACK, RankPlace
from sundog.runtime.sampling.sampler import Sampled, named

WAIT_S = 300.0
"""Seconds that a collective waits for the other ranks, as long as a step (`engine_process.STEP_S`)."""


class RankGroup:
    """Group of a replica's ranks, as used by one of them. `device` is this rank's own."""

    def __init__(self, rank: RankPlace, device: torch.device) -> None:
        self.rank, self.device = rank, device
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        # The library's own loader binds a process to the device of this number.
        os.environ["LOCAL_RANK"] = str(device.index or 0)
        timeout = timedelta(seconds=WAIT_S)
        store = dist.TCPStore(  # type: ignore[attr-defined]  # the library's gap
            LOOPBACK,
            rank.port,
            rank.count,
            rank.leads,
            timeout,
            wait_for_workers=False,
            master_listen_fd=rank.listening,
        )
        is_cuda = device.type == "cuda"
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            store=store,
            rank=rank.number,
            world_size=rank.count,
            timeout=timeout,
            device_id=device if is_cuda else None,
        )

    def close(self) -> None:
        """Leave the group; another may be made in this process."""
        dist.destroy_process_group()

    def sum(self, part: Tensor) -> None:
        """Replace each rank's part by their sum, in place; the same bits at every rank."""
        dist.all_reduce(part)

    def gather_columns(self, part: Tensor, num_columns: int) -> Tensor:
        """Return all `num_columns` of a tensor; each rank has an equal share, the last possibly fewer."""
        width = -(-num_columns // self.rank.count)
        if part.shape[-1] < width:
            part = torch.nn.functional.pad(part, (0, width - part.shape[-1]))
        parts = [torch.empty_like(part) for _ in range(self.rank.count)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, -1)[..., :num_columns]

    def least(self, number: int) -> int:
        """Return the smallest of the ranks' numbers."""
        numbers = torch.tensor([number], device=self.device)
        dist.all_reduce(numbers, dist.ReduceOp.MIN)
        return int(numbers)

    def follow(self, token_R: Tensor) -> None:
        """Replace these tokens by rank 0's, in place; a row without a token has -1."""
        dist.broadcast(token_R, 0)

    def share(self, sampled: Sampled, num_rows: int) -> Sampled:
        """Return what rank 0 sampled, including rows without a token; the other ranks pass None as
        `sampled`.
        """
        if not self.rank.leads:
            token_R = torch.empty(num_rows, dtype=torch.int64, device=self.device)
            self.follow(token_R)
            return named(token_R.tolist())
        tokens = [-1 if row in sampled.failed else token for row, token in enumerate(sampled.tokens)]
        self.follow(torch.tensor(tokens, device=self.device))
        return sampled


def device_of(rank: RankPlace, device: str) -> torch.device:
    """Return the rank's own device: `cuda` becomes the GPU of its number among its replica's.

    Raises ConfigError if there are too few.
    """
    if device != "cuda":
        return torch.device(device)
    num_gpus = torch.cuda.device_count()
    if rank.number >= num_gpus:
        raise ConfigError(
            f"--tensor-parallel-size is {rank.count}: {rank} needs GPU {rank.number}, and torch sees"
            f" {num_gpus}; lower it, or --replicas"
        )
    return torch.device("cuda", rank.number)


def _loopback() -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == LOOPBACK for each in addresses):
            return str(name)
    raise ConfigError(f"ranks meet at {LOOPBACK}, which no network interface of this machine has")
