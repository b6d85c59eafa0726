"""`--step-log FILE`: a row of forward-pass metrics for each step, of a replay or a server; JSON lines.

    {"version":1,"worker_id":"sundog","dp_rank":0,"counter_id":7,"wall_time":0.0123,
     "scheduled_requests":{…},"queued_requests":{…}}

`dp_rank` is the replica. A step's wall time is counted from the end of the previous one if the engine
continued without a pause. Requests wait for all replicas together: rank 0 counts them.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from sundog.actors.core.batch import Batch
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import EngineDown, Heard, StepOutput, Submit, Unserved
from sundog.sim.files.lines import LineWriter
from sundog.sim.files.run_files import RunError

Metrics = dict[str, int | float]


@dataclass(slots=True)
class Sizes:
    """Number, sum and sum of squares of some sizes, all whole numbers."""

    num: int = 0
    total: int = 0
    squares: int = 0

    def add(self, size: int) -> None:
        self.num += 1
        self.total += size
        self.squares += size * size

    def remove(self, size: int) -> None:
        self.num -= 1
        self.total -= size
        self.squares -= size * size

    def grow(self) -> None:
        """Increase each size by one."""
        self.squares += 2 * self.total + self.num
        self.total += self.num

    @property
    def variance(self) -> float:
        """Variance of the population, 0 for an empty one."""
        return (self.squares * self.num - self.total**2) / self.num**2 if self.num else 0.0


class Queued:
    """Waiting requests: new ones by their prompts, preempted ones by their known tokens."""

    def __init__(self) -> None:
        self._new: dict[str, int] = {}
        self._preempted: dict[str, int] = {}
        self._prefill, self._decode = Sizes(), Sizes()

    def submit(self, submit: Submit) -> None:
        self.leave(submit.request_id)
        self._new[submit.request_id] = submit.num_prompt_tokens
        self._prefill.add(submit.num_prompt_tokens)

    def preempt(self, name: str, num_tokens: int) -> None:
        self._preempted[name] = num_tokens
        self._decode.add(num_tokens)

    def leave(self, name: str) -> None:
        """Remove a request, if it waits."""
        for names, sizes in ((self._new, self._prefill), (self._preempted, self._decode)):
            size = names.pop(name, None)
            if size is not None:
                sizes.remove(size)

    def metrics(self) -> Metrics:
        return {
            "num_prefill_requests": self._prefill.num,
            "sum_prefill_tokens": self._prefill.total,
            "var_prefill_length": self._prefill.variance,
            "num_decode_requests": self._decode.num,
            "sum_decode_kv_tokens": self._decode.total,
            "var_decode_kv_tokens": self._decode.variance,
        }


class Scheduled:
    """Running requests of one replica; `begin` a batch, then `advance` step by step."""

    def __init__(self, queued: Queued) -> None:
        self._queued = queued
        self._clock = 0
        self._decoding: dict[str, int] = {}
        """Number of computed tokens of each request that decodes, less the clock."""
        self._prompt: dict[str, int] = {}
        self._prefilling: dict[str, int] = {}
        """Number of computed tokens of each request that prefills."""
        self._kv = Sizes()
        self._joining: list[str] = []
        self._idle: list[tuple[str, int]] = []
        self._prefill, self._num_new, self._num_before = Sizes(), 0, 0

    def begin(self, batch: Batch) -> None:
        """Apply a batch to the running requests."""
        for name in batch.finished:
            self._forget(name)
            self._queued.leave(name)
        for name in batch.preempted:
            self._queued.preempt(name, self._forget(name))
        self._prefill, self._num_new, self._num_before = Sizes(), 0, 0
        for admission in batch.admitted:
            self._queued.leave(admission.request_id)
            self._prompt[admission.request_id] = admission.num_prompt_tokens
            self._prefilling[admission.request_id] = admission.num_computed_tokens
        for chunk in batch.chunks:
            before = self._prefilling[chunk.request_id]
            self._prefill.add(self._prompt[chunk.request_id])
            self._num_new += chunk.num_tokens
            self._num_before += before
            self._prefilling[chunk.request_id] = before + chunk.num_tokens
            if chunk.samples:
                self._joining.append(chunk.request_id)
        for name in batch.idle:
            size = self._decoding[name] + self._clock
            self._kv.remove(size)
            self._idle.append((name, size))

    def metrics(self) -> Metrics:
        """Return the metrics of the current step."""
        return {
            "num_prefill_requests": self._prefill.num,
            "sum_prefill_tokens": self._num_new,
            "var_prefill_length": self._prefill.variance,
            "sum_prefill_kv_tokens": self._num_before,
            "num_decode_requests": self._kv.num,
            "sum_decode_kv_tokens": self._kv.total,
            "var_decode_kv_tokens": self._kv.variance,
        }

    def advance(self, accepted: tuple[tuple[str, int], ...] = ()) -> None:
        """Advance by one step; `accepted` counts the accepted drafts of requests."""
        for name, count in accepted:
            size = self._decoding[name] + self._clock
            self._kv.remove(size)
            self._kv.add(size + count)
            self._decoding[name] += count
        self._clock += 1
        self._kv.grow()
        self._prefill, self._num_new, self._num_before = Sizes(), 0, 0
        joining = [(name, self._prefilling.pop(name)) for name in self._joining]
        for name, size in (*joining, *self._idle):
            self._decoding[name] = size - self._clock
            self._kv.add(size)
        self._joining, self._idle = [], []

    def _forget(self, name: str) -> int:
        self._prompt.pop(name, None)
        size = self._decoding.pop(name, None)
        if size is None:
            return self._prefilling.pop(name, 0)
        self._kv.remove(size + self._clock)
        return size + self._clock


VERSION = 1
WORKER = "sundog"
FLUSH_ROWS = 256
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class StepLog(Actor[Heard]):
    """Listener that writes the rows into a new file. Raises RunError when it cannot."""

    def __init__(self, path: Path | str) -> None:
        super().__init__("step-log")
        if Path(path).exists():
            raise RunError(f"{path} exists: a step log is never written over; give another name")
        self._file = LineWriter(Path(path), is_zipped=Path(path).suffix == ".gz")
        self._queued = Queued()
        self._replicas: dict[int, Scheduled] = {}
        self._busy_since_s: dict[int, float | None] = {}
        """End of each replica's previous step if it has had work since; None otherwise."""
        self._num_rows: dict[int, int] = {}
        self._rows: list[str] = []

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._close()

    def handle(self, message: Heard) -> None:
        match message:
            case Submit():
                self._queued.submit(message)
            case EngineDown():
                for name in message.request_ids:
                    self._queued.leave(name)
                self._replicas.pop(message.replica, None)
                self._busy_since_s.pop(message.replica, None)
            case Unserved():
                for name in message.request_ids:
                    self._queued.leave(name)
            case StepOutput():
                self._step(message)

    def _step(self, output: StepOutput) -> None:
        replica = output.replica
        scheduled = self._replicas.setdefault(replica, Scheduled(self._queued))
        scheduled.begin(output.batch)
        begin_s = self._busy_since_s.get(replica)
        start_s = output.start_s if begin_s is None else begin_s
        has_tokens = output.batch.num_tokens > 0
        for end_s in output.end_times_s:
            if has_tokens:
                self._row(replica, end_s - start_s, scheduled.metrics())
            scheduled.advance(output.accepted)
            start_s = end_s
        self._busy_since_s[replica] = start_s if has_tokens and output.num_running else None
        for finish in output.finished:
            self._queued.leave(finish.request_id)

    def _row(self, replica: int, wall_s: float, scheduled: Metrics) -> None:
        number = self._num_rows[replica] = self._num_rows.get(replica, -1) + 1
        row: dict[str, object] = {
            "version": VERSION,
            "worker_id": WORKER,
            "dp_rank": replica,
            "counter_id": number,
            "wall_time": wall_s,
            "scheduled_requests": scheduled,
            "queued_requests": (self._queued if replica == 0 else Queued()).metrics(),
        }
        self._rows.append(_encode(row))
        if len(self._rows) >= FLUSH_ROWS:
            self._flush()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        self._file.write(rows)
        self._file.flush()

    def _close(self) -> None:
        try:
            self._flush()
        finally:
            self._file.close()
