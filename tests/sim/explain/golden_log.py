"""Golden logs as records of a journal, so that vLLM's own decisions can be folded into histories.

Such a log (`tests/golden/README.md`) says what was decided and not why; there is no time in it, so
step k lasts from k to k + 1. Why the next in the queue was not admitted follows by elimination
from the trace's configuration: what is tested first and failed is the reason.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sundog.actors.core.batch import Blocked, Chunk
from sundog.sim.explain.history import History
from sundog.sim.explain.journal_reader import Record
from sundog.sim.files.lines import Row
from sundog.sim.record.journal_rows import Admitted, Arrival, Header, JournalEnd, JournalStep, Preempted

MOST_STEPS_IN_FLIGHT = 8
LOGGED = ("add", "refuse", "sched", "update", "abort", "reset", "stall", "end")


def golden_history(trace: Row, log: Iterable[Row]) -> History:
    """The decisions on a trace, folded."""
    history = History(log_header(trace))
    for record in log_records(trace, log):
        history.observe(record)
    history.end()
    return history


def log_header(trace: Row) -> Header:
    """Describe the deployment as a trace does."""
    config = trace["config"]
    return Header(
        block_size=config["block_size"],
        num_blocks=config["num_gpu_blocks"],
        max_num_seqs=config["max_num_active_seqs"] or config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        num_watermark_blocks=int(config["watermark"] * config["num_gpu_blocks"]),
        policy=config["policy"],
    )


def log_records(trace: Row, log: Iterable[Row]) -> Iterator[Record]:
    """The arrivals and steps of a log."""
    reader = _Log(trace)
    for row in log:
        yield from reader.read(row)
    yield from reader.rest()


@dataclass(slots=True)
class _Planned:
    """A step whose result has not come back; `ahead` are the steps before it that had not, either."""

    row: Row
    preempted: tuple[Preempted, ...]
    ahead: tuple[int, ...]


@dataclass(slots=True)
class _Log:
    """The part of a log that must be kept while it is read."""

    trace: Row
    config: Row = field(init=False)
    requests: Mapping[str, Row] = field(init=False)
    free_blocks: int = field(init=False)
    running: list[str] = field(default_factory=list)
    tables: dict[str, int] = field(default_factory=dict)
    """Blocks of each running request."""
    planned: deque[_Planned] = field(default_factory=deque)
    sampled: dict[int, set[str]] = field(default_factory=dict)
    """The requests that sampled in the latest steps."""
    num_outputs: Counter[str] = field(default_factory=Counter)
    refused: list[JournalEnd] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    decoding: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.config = self.trace["config"]
        self.requests = {row["id"]: row for row in self.trace["requests"]}
        self.free_blocks = self.config["num_gpu_blocks"] - 1

    def read(self, row: Row) -> Iterator[Record]:
        """Take in one event of the log."""
        match row["ev"]:
            case "add":
                yield self._arrival(row)
            case "refuse":
                self.refused.append(JournalEnd(row["id"], "refused", 0, row["reason"]))
            case "sched":
                self._plan(row)
            case "update":
                yield self._update(row)
            case "abort":
                self.aborted += row["aborted"]
                self._leave(row["aborted"])
            case kind if kind not in LOGGED:
                raise ValueError(f"unknown event {kind!r}")
        self.free_blocks = row.get("free_blocks", self.free_blocks)

    def rest(self) -> Iterator[JournalStep]:
        """Steps whose results the log does not hold."""
        while self.planned:
            step = self.planned[0].row["step"]
            yield self._update({"step": step, "tokens": {}, "finished": {}, "free_blocks": self.free_blocks})

    def _arrival(self, row: Row) -> Arrival:
        self.num_outputs[row["id"]] = 0
        request = self.requests[row["id"]]
        counts = len(request["prompt"]), request["max_tokens"], request.get("priority") or 0
        return Arrival(row["id"], float(row["step"]), *counts)

    def _leave(self, names: list[str]) -> None:
        self.running = [name for name in self.running if name not in names]

    # --- a step ----------------------------------------------------------------------------------

    def _plan(self, row: Row) -> None:
        """Note a planned step while the queues before it are known."""
        preempted = (*self._reset(row), *self._victims(row))
        for name, blocks in row["blocks"].items():
            is_new = name in row["new"] or name in row["resumed"]
            self.tables[name] = len(blocks) + (0 if is_new else self.tables.get(name, 0))
        self.running = list(row["run_q"])
        ahead = tuple(planned.row["step"] for planned in self.planned)
        self.planned.append(_Planned(row, preempted, ahead))

    def _reset(self, row: Row) -> Iterator[Preempted]:
        """Requests that a reset of the prefix cache sent back to wait since the step before."""
        returned = {*row["resumed"], *row["wait_q"]} - {*row["preempted"]}
        for name in reversed(self.running):
            if name in returned:
                yield Preempted(name, None, "prefix-cache reset")

    def _victims(self, row: Row) -> Iterator[Preempted]:
        """Each victim with the request whose growth the free blocks did not suffice for.

        Requests grow in the order of admission, and victims are taken one by one until it fits.
        """
        victims, free = list(row["preempted"]), self.free_blocks
        given = {name for name, _ in row["sched"]}
        for name in self.running:
            if not victims:
                break
            free -= len(row["blocks"].get(name, ())) if name in given else 0
            while victims and (free < 0 or victims[0] == name):
                free += self.tables.get(victims[0], 0)
                yield Preempted(victims.pop(0), name)
        for name in victims:
            yield Preempted(name, None)

    def _update(self, update: Row) -> JournalStep:
        """The result of the oldest planned step: now it is known which requests sampled in it."""
        if not self.planned or self.planned[0].row["step"] != update["step"]:
            raise ValueError(f"the result of step {update['step']} comes out of turn")
        planned = self.planned.popleft()
        row, preempted, tokens = planned.row, planned.preempted, update["tokens"]
        step = row["step"]
        blocked = self._blocked(planned)
        self.sampled[step] = set(tokens)
        self.sampled.pop(step - MOST_STEPS_IN_FLIGHT, None)
        self.num_outputs.update(tokens.keys())
        self.decoding -= {victim.request_id for victim in preempted}
        entered = {*row["new"], *row["resumed"]}
        self.decoding -= entered
        chunks = tuple(
            Chunk(name, num_tokens, name in tokens)
            for name, num_tokens in row["sched"]
            if name not in self.decoding
        )
        given = {name for name, _ in row["sched"]}
        idle = tuple(n for n in row["run_q"] if n in self.decoding and n not in given)
        num_decodes = len(given) - len(chunks)
        self.decoding |= {chunk.request_id for chunk in chunks if chunk.samples}
        ended = self.refused + [JournalEnd(name, "abort", 0) for name in self.aborted]
        ended += [JournalEnd(n, reason, int(n in tokens)) for n, reason in update["finished"].items()]
        self._leave(self.aborted + list(update["finished"]))
        self.refused, self.aborted = [], []
        return JournalStep(
            step=step,
            start_s=float(step),
            ends_s=(float(step + 1),),
            num_free_blocks=update["free_blocks"],
            num_decodes=num_decodes,
            admitted=self._admitted(row),
            chunks=chunks,
            idle=idle,
            preempted=preempted,
            ended=tuple(ended),
            blocked=blocked,
            num_free_blocks_planned=row["free_blocks"],
        )

    def _admitted(self, row: Row) -> tuple[Admitted, ...]:
        resumed = set(row["resumed"])
        entered = {*row["new"], *resumed}
        return tuple(
            Admitted(name, self._num_tokens(name), row["hit"][name], name in resumed)
            for name, _ in row["sched"]
            if name in entered
        )

    # --- why the next one was not admitted -------------------------------------------------------

    def _blocked(self, planned: _Planned) -> Blocked | None:
        """The request that was next in this step, and what it lacked."""
        row, config = planned.row, self.config
        waiting: list[str] = row["wait_q"]
        if not waiting:
            return None
        if row["preempted"]:
            return Blocked(waiting[0], "preemption")
        budget = config["max_num_batched_tokens"] - sum(num for _, num in row["sched"])
        if budget == 0:
            return Blocked(waiting[0], "token budget")
        if len(row["run_q"]) >= (config["max_num_active_seqs"] or config["max_num_seqs"]):
            return Blocked(waiting[0], "max_num_seqs")
        # A request with a token in flight is passed over.
        late = set[str]().union(*(self.sampled.get(step, ()) for step in planned.ahead))
        head = next((name for name in waiting if name not in late), None)
        if head is None:
            return None
        whole = not config["enable_chunked_prefill"] and self._num_tokens(head) > budget
        return Blocked(head, "token budget" if whole else "KV blocks")

    def _num_tokens(self, name: str) -> int:
        return len(self.requests[name]["prompt"]) + self.num_outputs[name]
