"""A run on disk: `journal.jsonl.gz`, one line per arrival and per StepOutput, written as it goes.

It holds what `sundog explain` needs and no prompt: times, which requests were admitted, computed, preempted,
ended, and why no other was. The first line is the header. Times are seconds since the journal was opened
(virtual time begins at 0). Same run, same bytes.

    {"journal":1,"block_size":16,...}
    {"routed":["r1"],"replica":0,"up":2,"requests":[3,3,5],"blocks":[12,0]}
    {"submit":"r1","arrival":0.5,"prompt":120,"max_tokens":64}
    {"step":7,"start":0.5,"ends":[0.52],"decodes":3,"admitted":[["r1",120,16,0]],
     "chunks":[["r1",104,1]],"blocked":["r2","KV blocks"],"planned_free":12,"free":14}
    {"step":8,"start":0.52,"ends":[0.53],"decodes":3,"drafts":[["r1",4,2]],"free":14}
    {"lost":["r1","r3"],"replica":0,"at":0.6,"ended":["r3"]}

`reached` has the times at which requests that a step admits, or ends, left the API processes of a simulated
server. Empty fields are left out. A decode run is one line with the end of each of its steps.

`messages.jsonl.gz` holds every message, one line each, in the order in which they were sent:

    {"messages":1,"run":"9f86d081884c7d65","origin":0.0}
    {"time":0.5,"from":"async-llm","to":"router","message":"Submit","request_id":"r1",…}

Times are seconds after `origin` of the run's clock. Answers are lines too, from the actor that answers.
Fields are the message's own; of prompts, texts and long lists only the length is kept. A server leaves such
files for each start.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from sundog.actors.kernel.actor import Actor
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import EngineDown, Heard, Routed, StepOutput, Submit
from sundog.sim.files.lines import LineWriter
from sundog.sim.files.run_files import JOURNAL, MESSAGES, RunError, last_number, numbered
from sundog.sim.record.journal_rows import BROKEN_OFF, VERSION, Header
from sundog.sim.record.recorder import tokens_at_end
from sundog.sim.record.run_directory import server_id

LINES = 256
"""Number of lines that are written together."""
FLUSH_S = 1.0
"""Seconds, on a server's clock, after which lines are written at the latest, so that a running server can be
explained.
"""


class JournalFile(Actor[Heard]):
    """Listener that writes a journal into a directory, which it creates.

    Memory is bounded by `LINES` lines. Raises RunError when it cannot write. The journal of a crashed or
    cancelled run is completed, and its last line reports the break. One of more than `most_requests` is
    removed. One that `is_live` can be read meanwhile.
    """

    def __init__(
        self,
        directory: Path | str,
        header: Header,
        name: str = JOURNAL,
        most_requests: float = math.inf,
        is_live: bool = True,
    ) -> None:
        super().__init__("journal-file")
        self.num_left = most_requests
        """Number of requests that may still arrive; below 0 the journal has been removed."""
        self._path = Path(directory) / name
        self._is_live = is_live
        self._lines = [_encode({"journal": VERSION, **asdict(header)})]
        self._origin_s = self._flush_due_s = 0.0
        self._in_front: dict[str, Submit] = {}
        """Requests that no step has admitted yet; some wait for an API process."""
        self._file: LineWriter | None = None

    async def opened(self) -> None:
        self._origin_s = now_s()
        self._file = LineWriter(self._path)
        self._flush()

    async def run(self) -> None:
        try:
            await super().run()
        except BaseException:
            self._lines.append(_encode({BROKEN_OFF: now_s() - self._origin_s}))
            self._close()
            raise
        self._close()

    def handle(self, message: Heard) -> None:
        if self.num_left < 0:
            return
        match message:
            case StepOutput():
                found = self._reached_s(message)
                more: dict[str, object] = {"reached": found} if found else {}
                self._lines.append(_step_line(message, self._origin_s, more))
                if not (message.num_running or message.num_waiting):
                    # Nothing may follow for long, and readers shall see what has happened.
                    self._flush_due_s = 0.0
            case Submit():
                self.num_left -= 1
                if self.num_left < 0:
                    return self._remove()
                self._in_front[message.request_id] = message
                self._lines.append(_submit_line(message, self._origin_s))
            case Routed():
                self._lines.append(_routed_line(message))
            case EngineDown():
                for name in message.request_ids:
                    self._in_front.pop(name, None)
                lost = {"lost": message.request_ids, "replica": message.replica}
                ended = {"ended": message.in_batch} if message.in_batch else {}
                self._lines.append(_encode(lost | {"at": now_s() - self._origin_s} | ended))
        if len(self._lines) >= LINES or (self._is_live and now_s() >= self._flush_due_s):
            self._flush()

    def _reached_s(self, output: StepOutput) -> dict[str, float]:
        """Return when the requests that a step admits, or that ended before, left their API process."""
        found, batch = dict[str, float](), output.batch
        names = [each.request_id for each in batch.admitted] + [each.request_id for each in output.finished]
        for name in names:
            submit = self._in_front.pop(name, None)
            if submit is not None and submit.reached_s is not None:
                found[name] = submit.reached_s - self._origin_s
        return found

    def _flush(self) -> None:
        assert self._file is not None
        lines, self._lines = self._lines, []
        self._file.write(lines)
        if self._is_live:
            self._file.flush()
        self._flush_due_s = now_s() + FLUSH_S

    def _remove(self) -> None:
        self._close()
        self._file = None
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file is not None:
            self._flush()
            self._file.close()


def _encode(row: Mapping[str, object]) -> str:
    return to_json(row).decode()


def _submit_line(submit: Submit, origin_s: float) -> str:
    row: dict[str, object] = {
        "submit": submit.request_id,
        "arrival": submit.arrival_s - origin_s,
        "prompt": submit.num_prompt_tokens,
        "max_tokens": submit.max_tokens,
    }
    if submit.priority:
        row["priority"] = submit.priority
    if submit.tenant is not None:
        row["tenant"] = submit.tenant
    return _encode(row)


def _routed_line(routed: Routed) -> str:
    row: dict[str, object] = {
        "routed": routed.request_ids,
        "replica": routed.replica,
        "up": routed.num_up,
        "requests": (routed.num_requests, routed.fewest_requests, routed.most_requests),
    }
    if routed.num_hit_blocks is not None:
        row["blocks"] = (routed.num_hit_blocks, routed.most_other_hit_blocks)
    return _encode(row)


def _step_line(output: StepOutput, origin_s: float, more: dict[str, object]) -> str:
    batch, ends_s = output.batch, output.end_times_s
    row: dict[str, object] = {
        "step": batch.step,
        "start": output.start_s - origin_s,
        "ends": [end_s - origin_s for end_s in ends_s],
        "free": output.num_free_blocks,
    }
    if output.replica:
        row["replica"] = output.replica
    if batch.num_decodes:
        row["decodes"] = batch.num_decodes
    if batch.admitted:
        row["admitted"] = [
            (a.request_id, a.num_tokens, a.num_computed_tokens, int(a.resumed)) for a in batch.admitted
        ]
    if batch.chunks:
        row["chunks"] = [(c.request_id, c.num_tokens, int(c.samples)) for c in batch.chunks]
    if batch.drafts:
        accepted, surplus = dict(output.accepted), dict(output.surplus)
        row["drafts"] = [
            (name, count, accepted.get(name, 0), *((surplus[name],) if name in surplus else ()))
            for name, count in batch.drafts
        ]
    if batch.idle:
        row["idle"] = batch.idle
    if batch.preempted:
        row["preempted"] = list(zip(batch.preempted, batch.preempted_for, strict=True))
    if output.finished:
        row["ended"] = [(ended.request_id, ended.reason, num) for ended, num in tokens_at_end(output)]
        refused = {
            finish.request_id: finish.error for finish in output.finished if finish.reason == "refused"
        }
        if refused:
            row["refused"] = refused
    if output.ranks:
        row["ranks"] = [(name, _rank(rank)) for name, rank in output.ranks]
    if output.blocked is not None:
        row["blocked"] = output.blocked
        row["planned_free"] = output.num_free_blocks_planned
    return _encode(row | more)


def _rank(rank: object) -> object:
    if isinstance(rank, tuple):
        return [_rank(part) for part in rank]
    return str(rank) if isinstance(rank, float) and not math.isfinite(rank) else rank


MESSAGES_VERSION = 1
MOST_ITEMS = 8
"""Most items of a list; longer ones are written as `{"items": n}`."""


class MessageFile:
    """Tap that writes a new file into a directory, which it creates; `close` it at the end.

    Times are seconds since the first message; `run_id` is that of the journal beside it. Raises RunError when
    it cannot write.
    """

    def __init__(self, directory: Path | str, run_id: str | None, name: str = MESSAGES) -> None:
        self._file = LineWriter(Path(directory) / name)
        self._run_id = run_id
        self._origin_s: float | None = None

    def close(self) -> None:
        """Complete the file at the end of the run."""
        self._file.close()

    def __call__(self, time_s: float, sender: str, receiver: str, message: object) -> None:
        if self._origin_s is None:
            self._origin_s = time_s
            header = {"messages": MESSAGES_VERSION, "run": self._run_id, "origin": time_s}
            self._file.write([_encode(header)])
        row = {
            "time": time_s - self._origin_s,
            "from": sender,
            "to": receiver,
            "message": type(message).__name__,
            **_fields(message),
        }
        self._file.write([_encode(row)])


def _fields(message: Any) -> dict[str, Any]:
    if is_dataclass(message):
        values = {field.name: getattr(message, field.name) for field in fields(message)}
    else:
        values = message._asdict() if hasattr(message, "_asdict") else {}
    shown = {name: _value(name, value) for name, value in values.items()}
    return {name: value for name, value in shown.items() if value not in (None, [], False)}


def _value(name: str, value: Any) -> Any:
    if name == "prompt" and isinstance(value, str):
        return {"characters": len(value)}
    if isinstance(value, (int, float, str)) or value is None:
        return value
    if isinstance(value, tuple) and not hasattr(value, "_asdict"):
        if not value:
            return None
        if name.endswith("token_ids") or name == "prompt" or len(value) > MOST_ITEMS:
            return {"items": len(value)}
        return [_value("", item) for item in value]
    if is_dataclass(value) or hasattr(value, "_asdict"):
        return _fields(value)
    return type(value).__name__


log = logging.getLogger("sundog.record")


class ServerRecord:
    """Journal of a server, and with `messages` every message: files numbered by start.

    Files of earlier starts are kept, since the journal of a crash matters most. Use it in a `with`. Raises
    RunError when it cannot write, or in the folder of a replay; an incomplete file at the end is a warning,
    as for a listener that fails on a server.
    """

    def __init__(self, directory: Path | str, header: Header, messages: bool = False) -> None:
        folder = Path(directory)
        if (folder / JOURNAL).exists():
            raise RunError(f"{folder} holds the run of a replay: give another folder")
        number = last_number(folder) + 1
        header = replace(header, run=server_id())
        self.listeners: list[Actor[Heard]] = [JournalFile(folder, header, numbered(JOURNAL, number))]
        self.tap = MessageFile(folder, header.run, numbered(MESSAGES, number)) if messages else None

    def __enter__(self) -> "ServerRecord":
        return self

    def __exit__(self, *_: object) -> None:
        if self.tap is not None:
            try:
                self.tap.close()
            except RunError as error:
                log.warning("the messages are not whole: %s", error)
