"""Page of one request's path through the graph, and the same as lines of text."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple

from sundog.sim.explain.phases import RequestPhase, passings, phases
from sundog.sim.explain.walk import OwnStep, Walk, WalkStop, named_in
from sundog.sim.record.journal_rows import Header
from sundog.sim.show import words

NODE_GAP, NODE_TOP, NODE_HEIGHT, LETTER_WIDTH = 14, 26, 28, 7
MOST_PHASES = 8


class StopWords(NamedTuple):
    """Stop in words: a heading, sentences, and pairs of a name and a fact."""

    title: str
    sentences: list[str]
    facts: list[tuple[str, str]]


def since(walk: Walk, time_s: float, until_s: float | None = None) -> str:
    """Return a time or a time span as milliseconds after the request's arrival."""
    start, *end = (
        f"{(each - walk.request.arrival.time_s) * 1000:,.3f}"
        for each in (time_s, until_s)
        if each is not None
    )
    return f"{start} to {end[0]} ms" if end and end[0] != start else f"{start} ms"


def told(walk: Walk, stop: WalkStop) -> StopWords:
    """Describe a stop in words."""
    header = walk.history.header
    if stop.waited:
        took_s = stop.until_s - stop.time_s
        sentences = [] if stop.after is None else [words.lost(stop.after, walk.request.request_id)]
        sentences += [_why(phase, header) for phase in stop.waited[:MOST_PHASES]]
        if (num_left := len(stop.waited) - MOST_PHASES) > 0:
            sentences.append(
                f"… and {words.count(num_left, 'further change')} of cause (`sundog explain --all`)"
            )
        sentences += [words.passed_by(each) for each in _passed(walk, stop)]
        return StopWords(f"it waits {took_s * 1000:,.3f} ms in the queue", sentences, [])
    purpose = [stop.purpose] if stop.purpose else []
    if stop.step is None:
        of_step = f" of step {stop.row['step']:,}" if "step" in stop.row else ""
        lists = [f"`{key}`" for key in named_in(stop.row, walk.request.request_id) if key != "request_id"]
        purpose += [f"It names the request in {words.names(lists)}."] if lists else []
        return StopWords(stop.message + of_step, purpose, [])
    facts = list(_facts(walk, stop.step))
    if not stop.message:
        same = "Nothing else changes for this request; each step is like the one before."
        return StopWords(f"{_numbers(stop.step)}: {_each(stop.step)}", [same], facts)
    return StopWords(f"{stop.message} of {_numbers(stop.step)}", purpose, facts)


def _passed(walk: Walk, stop: WalkStop) -> Iterator[list[Any]]:
    for wait in walk.request.waits:
        if wait.start_s == stop.time_s and (found := passings(walk.history, walk.request, wait)):
            yield found


def _why(phase: RequestPhase, header: Header) -> str:
    steps = f"{words.count(phase.num_steps, 'step')}, " if phase.num_steps else ""
    return f"{phase.seconds * 1000:,.3f} ms: {steps}{words.cause(phase, header)}"


def _numbers(step: OwnStep) -> str:
    return f"step {step.step:,}" if step.num_steps == 1 else f"steps {step.step:,} to {step.last_step:,}"


def _each(step: OwnStep) -> str:
    match step.kind:
        case "prefill":
            return f"{words.count(step.num_prefilled, 'token')} of its prompt in chunks"
        case "decode":
            is_even = step.num_decoded == step.num_steps
            return (
                f"one token{'' if step.num_steps == 1 else ' each'}"
                if is_even
                else words.count(step.num_decoded, "token")
            )
        case _:
            return "no token of this request"


def _facts(walk: Walk, step: OwnStep) -> Iterator[tuple[str, str]]:
    block_size = walk.history.header.block_size
    own = {
        "prefill": f"{words.count(step.num_prefilled, 'token')} of its own computed",
        "decode": f"{words.count(step.num_decoded, 'new token')}",
        "nothing": "no token: the request has ended, or the step skips it",
    }[step.kind]
    took_s, begins = step.end_s - step.start_s, since(walk, step.start_s)
    yield "batch", f"{_numbers(step)}, begun at {begins}, {took_s * 1000:,.3f} ms long"
    yield "its part", own
    yield "shared with", _others(step)
    if (hit := step.num_hit_tokens) is not None:
        blocks = f" in {words.count(hit // block_size, 'block')}" if block_size else ""
        yield "prefix hit", f"{words.count(hit, 'token')}{blocks}" if hit else "none"
    if block_size:
        num_blocks = -(-step.num_held_tokens // block_size)
        yield "its blocks", f"{num_blocks:,}, for {words.count(step.num_held_tokens, 'token')}"
        yield "free blocks after it", f"{step.num_free_blocks:,}"


def _others(step: OwnStep) -> str:
    if not step.others:
        return "no other request"
    prefill = [f"{name} (prefills {words.count(num, 'token')})" for name, num in step.others.items() if num]
    decode = [name for name, num in step.others.items() if not num]
    parts = [words.names(prefill)] if prefill else []
    parts += [f"{words.names(decode)} (decode{'s' if len(decode) == 1 else ''})"] if decode else []
    return f"{words.count(len(step.others), 'other')}: " + ", ".join(parts)


def summary(walk: Walk) -> list[tuple[str, str]]:
    """Return the figures of the walk's request, as names and values."""
    request, arrival = walk.request, walk.request.arrival
    hits = sum(span.admitted.num_hit_tokens for span in request.spans[:1])
    rows = [
        ("arrived", f"{arrival.time_s:,.3f} s"),
        ("first scheduled", since(walk, request.spans[0].start_s) if request.spans else "never"),
        ("first token", "none" if request.first_token_s is None else since(walk, request.first_token_s)),
        (
            "finished",
            "not in this record"
            if request.end_s is None
            else f"{since(walk, request.end_s)} ({request.reason})",
        ),
        ("prompt", words.count(arrival.num_prompt_tokens, "token")),
        ("found cached", words.count(hits, "token")),
        ("answer", words.count(request.num_output_tokens, "token")),
    ]
    if request.spans and len(request.spans) > 1:
        rows.append(("preempted", words.count(len(request.spans) - 1, "time")))
    if arrival.tenant is not None:
        rows.append(("tenant", arrival.tenant))
    return rows


def routed(walk: Walk) -> str:
    """Return the chosen replica and the reason; empty without a choice."""
    choice = walk.history.choices.get(walk.request.request_id)
    return "" if choice is None else words.chosen(choice, walk.history.header)


def text(walk: Walk) -> str:
    """Return the walk as lines of text: time, wire, message, handler, and the step's work."""
    lines = [
        f"Request {walk.request.request_id}",
        *(f"  {name:16}{value}" for name, value in summary(walk)),
        routed(walk),
    ]
    for stop in walk.stops:
        said = told(walk, stop)
        wire = f"{stop.sender} → {stop.receiver}" if stop.message else ""
        when = since(walk, stop.time_s, stop.until_s)
        lines.append(f"{when:>16}  {wire:26}  {said.title}".rstrip())
        lines += [f"{'':18}{sentence}" for sentence in said.sentences] if stop.waited else []
        lines += [f"{'':18}{code.file}:{code.line} {code.title}" for code in stop.handled[-1:]]
        facts = [
            f"{name}: {value}"
            for name, value in said.facts
            if name in ("its part", "shared with", "its blocks")
        ]
        lines += [f"{'':18}{'; '.join(facts)}"] if facts and stop.message in ("Batch", "") else []
    return "\n".join(lines)


# --- the page ------------------------------------------------------------------------------------


def render(walk: Walk, run: str) -> str:
    """Render a self-contained page; the same walk gives the same bytes."""
    from jinja2 import Environment

    here = files("sundog.sim.show.html")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        (here / "walk.html.jinja").read_text(encoding="utf-8")
    )
    actors = walk.actors
    node_width = LETTER_WIDTH * max(map(len, actors)) + 14
    places = {name: number * (node_width + NODE_GAP) for number, name in enumerate(actors)}

    def arc(sender: str, receiver: str) -> str:
        return _arc(places[sender] + node_width // 2, places[receiver] + node_width // 2)

    return page.render(
        run=run,
        request_id=walk.request.request_id,
        summary=summary(walk),
        routed=routed(walk),
        style=(here / "page.css").read_text(encoding="utf-8"),
        node_width=node_width,
        width=len(actors) * (node_width + NODE_GAP) - NODE_GAP,
        places=places,
        wires=[arc(*wire) for wire in walk.wires],
        phases=_shares(walk),
        stops=[
            {
                "said": told(walk, stop),
                "stop": stop,
                "since": since(walk, stop.time_s, stop.until_s),
                "at": _share(walk, stop.time_s),
                "lit": _lit(walk, number),
                "arc": arc(stop.sender, stop.receiver) if stop.message else None,
                "row": json.dumps(stop.row, ensure_ascii=False),
            }
            for number, stop in enumerate(walk.stops)
        ],
    )


def _lit(walk: Walk, number: int) -> list[str]:
    stop = walk.stops[number]
    if stop.message:
        return [stop.sender, stop.receiver]
    if stop.step is not None:
        of_steps = [each for each in walk.stops if each.message and each.step is not None]
        return list(dict.fromkeys(name for each in of_steps for name in (each.sender, each.receiver)))
    later = (each.sender for each in walk.stops[number:] if each.message and each.step is not None)
    return [name for name in [next(later, None) or walk.stops[number - 1].receiver] if name]


def _arc(start: int, end: int) -> str:
    bend = 1 if end < start else -1
    side = NODE_TOP + NODE_HEIGHT if end < start else NODE_TOP
    a, b = start - 8 * bend, end + 8 * bend
    return f"M{a} {side}Q{(a + b) // 2} {side + 44 * bend} {b} {side + 3 * bend}"


def _share(walk: Walk, time_s: float) -> float:
    start_s = walk.request.arrival.time_s
    end_s = max(stop.until_s for stop in walk.stops)
    return round(min(max(100 * (time_s - start_s) / max(end_s - start_s, 1e-12), 0.0), 100.0), 3)


def _shares(walk: Walk) -> list[tuple[str, float, float, str]]:
    found = phases(walk.history, walk.request)
    return [
        (
            phase.kind,
            _share(walk, phase.start_s),
            _share(walk, phase.end_s) - _share(walk, phase.start_s),
            f"{phase.kind}, {phase.seconds * 1000:,.3f} ms",
        )
        for phase in found
    ]
