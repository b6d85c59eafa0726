"""`--step-log FILE`: a row of forward-pass metrics for each step, of a replay or a server; JSON lines.

    {"version":1,"worker_id":"sundog","dp_rank":0,"counter_id":7,"wall_time":0.0123,
     "scheduled_requests":{…},"queued_requests":{…}}

`dp_rank` is the replica. A step's wall time is counted from the end of the one before it where the engine
went on without a pause. Requests wait for all replicas together: rank 0 counts them.
"""

import json
from pathlib import Path

from actors.kernel.actor import Actor
from actors.messages import EngineDown, Heard, StepOutput, Submit, Unserved
from sim.files.lines import LineWriter
from sim.files.run_files import RunError
from sim.record.step_counts import Metrics, Queued, Scheduled

VERSION = 1
WORKER = "sundog"
FLUSH_ROWS = 256
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class StepLog(Actor[Heard]):
    """The listener that writes the rows, into a new file. Raises RunError when it cannot."""

    def __init__(self, path: Path | str) -> None:
        super().__init__("step-log")
        if Path(path).exists():
            raise RunError(f"{path} exists: a step log is never written over; give another name")
        self._file = LineWriter(Path(path), is_zipped=Path(path).suffix == ".gz")
        self._queued = Queued()
        self._replicas: dict[int, Scheduled] = {}
        self._busy_since_s: dict[int, float | None] = {}
        """When the step before the next one ended, if there was work ever since."""
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
