"""Start line of a server: the model, and the capacity of its KV cache."""

from math import prod
from pathlib import Path

from sundog.actors.core.config import SchedulerConfig
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Capacity, EngineUp, Heard


class StartReport(Actor[Heard]):
    """Listener that waits for an engine and reports its capacity."""

    def __init__(self, limits: SchedulerConfig, replicas: int, folder: Path | None) -> None:
        super().__init__("start-report")
        self._limits, self._replicas, self._folder = limits, replicas, folder
        self._capacity: Capacity | None = None

    def handle(self, message: Heard) -> None:
        if isinstance(message, EngineUp):
            self._capacity = message.engine.capacity

    def line(self, name: str, device: str) -> str:
        """Return the start line: parameters, device, KV blocks, the longest context, and how many requests of
        that length fit at once.
        """
        count = None if self._folder is None else num_parameters(self._folder)
        parts = [f"{in_words(count)} parameters"] if count else []
        parts.append(f"on {device}" + (f", {self._replicas} replicas" if self._replicas > 1 else ""))
        if self._capacity is not None:
            blocks, size = self._capacity.num_blocks - 1, self._capacity.block_size
            longest = self._limits.max_model_len
            at_once = min(blocks // -(-longest // size), self._limits.max_num_seqs)
            parts.append(f"{blocks:,} KV blocks of {size} tokens")
            if (how := self._capacity.computation) is not None:
                by = "" if how.instructions is None else f" by {how.instructions}"
                parts.append(f"{how.dtype}{by}, a step is {how.steps}")
                parts += [] if how.faster is None else [how.faster]
            parts.append(f"contexts up to {longest:,} tokens, {at_once:,} of that length at once")
        return f"{name}: {'; '.join(parts)}"


def device_of(asked: str) -> str:
    """Return the device for `--device`, without torch, which only engines import."""
    if asked != "auto":
        return asked
    return "a GPU if torch sees one, else the CPU" if Path("/dev/nvidia0").exists() else "cpu"


def num_parameters(folder: Path) -> int | None:
    """Return the number of the model's parameters; None if weights are packed, or not in files of their
    own.
    """
    from sundog.runtime.checkpoint.facts import LoadError
    from sundog.runtime.checkpoint.weights import FLOATS, stored_tensors

    try:
        tensors = stored_tensors(folder).values()
    except LoadError:
        return None
    if any(tensor.dtype not in FLOATS for tensor in tensors):
        return None
    return sum(prod(tensor.shape) for tensor in tensors)


def in_words(count: int) -> str:
    """Return a count in words, such as 2.8 million."""
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:,}"
