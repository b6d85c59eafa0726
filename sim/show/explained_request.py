"""Page for people about one request, from arrival to end."""

from dataclasses import replace
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sundog.sim.explain.history import History, RequestHistory, RunningSpan, Wait
from sundog.sim.explain.phases import RequestPhase, passings, phases, running_phases, totals, wait_phases
from sundog.sim.figures.engine import SpeculationFigures
from sundog.sim.show import words
from sundog.sim.show.console import print_table

MOST_PHASES = 8
"""Maximum number of changes of cause to show for a wait, unless all are requested; the rest is summed by
cause.
"""


class RequestPage:
    """Page of a request; `every` shows each change of cause of long waits too."""

    def __init__(self, history: History, request: RequestHistory, *, every: bool = False) -> None:
        self.history = history
        self.header = history.header
        self.request = request
        self.every = every

    def print(self, console: Console) -> None:
        console.print(self._title(), style="bold", markup=False)
        console.print(self._summary(), markup=False)
        console.print()
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for start_s, took_s, text, style in self._rows():
            took = "" if took_s is None else words.length(took_s)
            table.add_row(words.moment(start_s), took, Text(text), style=style)
        print_table(console, table)
        console.print()
        console.print(self._totals(), markup=False)

    # --- above and below -------------------------------------------------------------------------

    def _title(self) -> str:
        arrival, request = self.request.arrival, self.request
        parts = [f"Request {request.request_id}"]
        parts.append(words.count(arrival.num_prompt_tokens, "prompt token"))
        parts.append(words.count(request.num_output_tokens, "output token"))
        if arrival.tenant is not None:
            parts.append(f"tenant {arrival.tenant}")
        if arrival.priority:
            parts.append(f"priority {arrival.priority}")
        if self.header.replicas > 1 and request.replica is not None:
            parts.append(f"replica {request.replica}")
        return " · ".join(parts)

    def _summary(self) -> str:
        request, start_s = self.request, self.request.arrival.time_s
        first = request.first_token_s
        parts = [f"arrived at {words.moment(start_s)}"]
        if first is None:
            parts.append("no token came")
        else:
            parts.append(f"first token after {words.length(first - start_s)}")
        if request.end_s is None:
            parts.append("unfinished when the record ends")
        else:
            took = words.length(request.end_s - start_s)
            parts.append(f"ended after {took} ({request.reason})")
        return " · ".join(parts)

    def _totals(self) -> str:
        sums = totals(phases(self.history, self.request))
        whole_s = sum(sums.values())
        parts = [
            f"{kind} {words.length(seconds)} ({seconds / whole_s:.0%})"
            for kind, seconds in sums.items()
            if seconds > 0
        ]
        recomputed = sum(span.recomputed_tokens for span in self.request.spans)
        if recomputed:
            parts.append(f"{words.count(recomputed, 'token')} computed again")
        if (drafts := SpeculationFigures.of(self.request.drafts)) is not None:
            parts.append(f"drafts: {words.drafts(drafts)}")
        return "In all: " + " · ".join(parts or ["nothing took any time"])

    # --- the rows --------------------------------------------------------------------------------

    def _rows(self) -> list[tuple[float, float | None, str, str]]:
        rows: list[tuple[float, float | None, str, str]] = []
        request = self.request
        for number, wait in enumerate(request.waits):
            if number == 0:
                rows.append((wait.start_s, None, self._arrived(wait), ""))
                if (choice := self.history.choices.get(request.request_id)) is not None:
                    rows.append((wait.start_s, None, words.chosen(choice, self.header), ""))
            rows += self._waited(wait)
            passed = passings(self.history, self.request, wait)
            if passed:
                rows.append((passed[0].time_s, None, words.passed_by(passed), ""))
            if number < len(request.spans):
                rows += self._ran(request.spans[number], wait)
        if request.end_s is not None:
            rows.append((request.end_s, None, self._ended(), "bold"))
        return rows

    def _ended(self) -> str:
        if self.request.refusal is not None:
            return f"refused by the policy: {self.request.refusal}"
        return f"ended: {self.request.reason}"

    def _arrived(self, wait: Wait) -> str:
        text = "arrived"
        queue = None if self.request.replica is None else self.history.queues[self.request.replica]
        first = None if queue is None else queue.admitted_first(wait)
        if first:
            text += f"; {words.count(first, 'other')} went first"
        return text

    def _waited(self, wait: Wait) -> list[tuple[float, float | None, str, str]]:
        found = wait_phases(self.history, self.request, wait)
        if len(found) <= MOST_PHASES or self.every:
            return [(p.start_s, p.seconds, self._why(p), "") for p in found]
        took_s = found[-1].end_s - found[0].start_s
        num_steps = sum(phase.num_steps or 0 for phase in found)
        text = (
            f"waited {words.count(num_steps, 'step')}, with {len(found):,} changes of cause"
            " (--all shows each); in all:"
        )
        rows: list[tuple[float, float | None, str, str]] = [(found[0].start_s, took_s, text, "")]
        for group in self._by_cause(found):
            rows.append((group.start_s, group.end_s - group.start_s, "  " + self._why(group), ""))
        return rows

    def _by_cause(self, found: list[RequestPhase]) -> list[RequestPhase]:
        def key(phase: RequestPhase) -> tuple[str, bool]:
            return (phase.reason or "", phase.own)

        merged = []
        for _, same in groupby(sorted(found, key=key), key=key):
            group = list(same)
            heads: dict[str, float] = {}
            for phase in group:
                heads |= phase.heads
            first = group[0]
            end_s = first.start_s + sum(phase.seconds for phase in group)
            num_steps = sum(phase.num_steps or 0 for phase in group)
            merged.append(replace(first, end_s=end_s, num_steps=num_steps, heads=heads))
        return sorted(merged, key=lambda phase: -phase.seconds)

    def _why(self, phase: RequestPhase) -> str:
        why = words.cause(phase, self.header)
        return f"waited {words.count(phase.num_steps, 'step') + ', ' if phase.num_steps else ''}{why}"

    def _ran(self, span: RunningSpan, wait: Wait) -> list[tuple[float, float | None, str, str]]:
        rows: list[tuple[float, float | None, str, str]] = []
        for number, phase in enumerate(running_phases(span)):
            match phase.kind:
                case "prefill" | "recompute":
                    text = self._caught_up(span, wait)
                case "stalled":
                    text = "stalled: the token budget of the step was given to others"
                case _:
                    text = f"decoded: {self._tokens(span)}" if number < 2 else "decoded on"
            rows.append((phase.start_s, phase.seconds, text, ""))
        if span.preempted is not None:
            assert span.end_s is not None
            rows.append((span.end_s, None, words.lost(span, self.request.request_id), "bold"))
        return rows

    def _tokens(self, span: RunningSpan) -> str:
        stalls = ", stalls included" if span.stalls else ""
        again = " more" if span.admitted.resumed else ""
        return words.count(span.num_output_tokens, "token").replace(" ", f"{again} ", 1) + stalls

    def _caught_up(self, span: RunningSpan, wait: Wait) -> str:
        num_tokens, hit = sum(span.chunks), span.admitted.num_hit_tokens
        text = "admitted again; " if span.admitted.resumed else "admitted; "
        if hit:
            text += f"{words.count(hit, 'token')} found in the prefix cache; "
        chunks = f" in {words.count(len(span.chunks), 'chunk')}" if len(span.chunks) > 1 else ""
        text += f"computed {num_tokens:,}{chunks}"
        if len(span.chunks) > 1 and span.catch_up_steps > len(span.chunks):
            text += f" over {words.count(span.catch_up_steps, 'step')}"
        if span.recomputed_tokens:
            text += f", {span.recomputed_tokens:,} of them for the second time"
        if span.caught_up_s is None or (span.end_s or 0.0) < span.caught_up_s:
            text += ", and did not catch up"
        return text
