"""The main job on one page: a real model answers over HTTP, and its simulation agrees with it.

Serve the embedded model; calibrate a cost model from the steps of some questions, ask it others, and
predict those by simulation; then run both worlds in step, the torch backend on the virtual
clock beside the cost backend, and compare every batch.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import httpx
import numpy as np
import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from actors.api.context import ServedModel
from actors.api.serve_graph import serve_graph
from actors.api.server_options import ServerOptions
from actors.config import EngineConfig, SchedulerConfig
from actors.engine.backend import Backend
from actors.kernel.actor import Actor
from actors.messages import Capacity, Heard, StepOutput, Submit
from runtime.serve import RealModel, torch_backends
from sim.backend import CostBackend, Pace, Paced
from sim.client import Recording
from sim.cost.calibrated import Calibrated, fit
from sim.figures.metrics import request_times
from sim.oracle import Oracle
from sim.record.journal import Journal, Past, decisions, observations
from sim.record.recorder import Recorder
from sim.replay import replay_on
from sim.show.console import console_for
from sim.show.timeline import timeline

NUM_BLOCKS = 64
LIMITS = SchedulerConfig(
    max_model_len=512, max_num_batched_tokens=32, max_num_seqs=4, num_gpu_blocks=NUM_BLOCKS
)
"""Small, so that chunked prefill and waiting can be seen."""
CONFIG = EngineConfig(scheduler=LIMITS)
CAPACITY = Capacity(NUM_BLOCKS, LIMITS.block_size)


@dataclass(slots=True)
class DemoRun:
    """Records that a run of the graph leaves behind."""

    journal: Journal = field(default_factory=Journal)
    recorder: Recorder = field(default_factory=lambda: Recorder(NUM_BLOCKS))

    def listeners(self) -> list[Actor[Heard]]:
        return [self.journal, Recording(self.recorder)]


def simulated(past: Past, cost: Calibrated) -> DemoRun:
    """The cost backend on the virtual clock; only the oracle knows how long answers will be."""
    run, trace = DemoRun(), past.trace()
    oracle = Oracle({request.request_id: request.num_output_tokens for request in trace})
    backend = CostBackend(Pace(cost, "runner-0"), oracle, CAPACITY)
    run.recorder = replay_on(
        trace, CONFIG, [backend], CAPACITY, generate_for=past.counted, listeners=[run.journal]
    )
    return run


def computed(past: Past, model: RealModel, cost: Calibrated, seed: int) -> DemoRun:
    """The torch backend on the virtual clock, its steps as long as the cost model says."""
    run = DemoRun()
    backend = Paced(torch_backends(model, CONFIG, seed=seed)(0), Pace(cost, "runner-0"))
    run.recorder = replay_on(
        past.trace(),
        CONFIG,
        [backend],
        CAPACITY,
        generate_for=past.exact,
        listeners=[run.journal],
        vocabulary=model.vocabulary,
    )
    return run


QUESTIONS = (
    "Tell me a story about a dragon named Luna.",
    "What is 17 + 25?",
    "What is rocket backwards?",
    "What is Sundog?",
    "What is the KV cache?",
    "Count down from 20 to 1.",
)
WARM_UP = "Hello!"
PRACTICE = (
    "Tell me a story about a cat named Tom.",
    "What is 23 + 48?",
    "Count up from 1 to 15.",
    "What is a token?",
)
ROUNDS, AT_ONCE = 3, (1, 2, 4)
"""Other questions, of which a cost model is made: how often, and how many at once."""
GAP_S = 0.03
"""Between two questions: the first is still being answered when the last arrives."""
MAX_TOKENS = 120


@dataclass(slots=True)
class Answer:
    """A question and its answer as the client sees them."""

    question: str
    text: str = ""
    asked_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


async def serve_and_ask(
    console: Console, model: RealModel, run: DemoRun, new_backend: Callable[[int], Backend]
) -> list[Answer]:
    """Serve on a free port; ask other questions, to learn what steps take, then all of these; and stop."""
    stop, ready, urls = trio.Event(), trio.Event(), list[str]()

    def on_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    answers = [Answer(question) for question in QUESTIONS]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(
                serve_graph,
                CONFIG,
                new_backend,
                ServedModel(model.name, LIMITS.max_model_len, int(time.time())),
                model.tokenizer,
                model.vocabulary,
                ServerOptions(port=0),
                on_ready=on_ready,
                stop=stop,
                listeners=run.listeners(),
            )
        )
        await ready.wait()
        async with httpx.AsyncClient(base_url=urls[0], timeout=60) as client:
            await _practise(client)
            with Live(_answers(answers), console=console, auto_refresh=False) as live:
                async with trio.open_nursery() as asking:
                    for number, answer in enumerate(answers):
                        asking.start_soon(
                            _ask,
                            client,
                            answer,
                            number * GAP_S,
                            lambda: live.update(_answers(answers), refresh=True),
                        )
        stop.set()
    if not console.is_terminal:
        console.line()
    return answers


def num_practised() -> int:
    """Requests before the first question."""
    return 1 + ROUNDS * sum(AT_ONCE)


async def _practise(client: httpx.AsyncClient) -> None:
    """Other questions, in rounds of more and more at once, after one that warms up."""
    await _ask(client, Answer(WARM_UP), 0.0, lambda: None)
    for at_once in AT_ONCE * ROUNDS:
        async with trio.open_nursery() as asking:
            for number, question in enumerate(PRACTICE[-at_once:]):
                asking.start_soon(_ask, client, Answer(question), number * GAP_S, lambda: None)


async def _ask(
    client: httpx.AsyncClient, answer: Answer, delay_s: float, on_text: Callable[[], None]
) -> None:
    """Stream one greedy answer."""
    await trio.sleep(delay_s)
    body = {
        "messages": [{"role": "user", "content": answer.question}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    answer.asked_s = trio.current_time()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            delta = json.loads(line[6:])["choices"][0]["delta"]
            if delta.get("content"):
                answer.last_s = trio.current_time()
                answer.first_s = answer.first_s or answer.last_s
                answer.text += delta["content"]
                on_text()


def _answers(answers: list[Answer]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", max_width=22)
    table.add_column()
    for answer in answers:
        table.add_row(answer.question, answer.text)
    return table


def run_demo(seed: int) -> int:
    """Play the page; 0 if the worlds agreed, 1 if not."""
    console = console_for()
    started = time.monotonic()
    model = RealModel.open(None)
    served, new_backend = DemoRun(), torch_backends(model, CONFIG, seed=seed)
    console.rule("A real model answers, over HTTP")
    answers = trio.run(serve_and_ask, console, model, served, new_backend)
    past = Past.of(served.journal, since=num_practised())
    outputs, submits = served.journal.outputs, served.journal.submits[: num_practised()]
    warmed_up, practised = _ends(outputs, submits[:1]), _ends(outputs, submits)
    console.rule("What its scheduler did")
    steps = [o for o in outputs if o.step > practised]
    console.print(timeline(past.submits, steps, [answer.question for answer in answers]))
    seen = [(o.work, o.seconds) for o in observations(outputs) if warmed_up < o.step <= practised]
    cost = fit(seen)
    predicted = simulated(past, cost)
    console.rule("What the simulation says of the same requests")
    console.print(_latencies(past, served.recorder, predicted.recorder, answers))
    console.print(
        f"The cost of a step was fitted to {len(seen):,} steps of other questions, asked before.", style="dim"
    )
    console.rule("Both worlds, step by step")
    agreed = _compare(console, computed(past, model, cost, seed), predicted, past)
    _where_next(console, time.monotonic() - started)
    return 0 if agreed else 1


def _ends(outputs: Sequence[StepOutput], submits: Sequence[Submit]) -> int:
    """The last step of these requests."""
    names = {submit.request_id for submit in submits}
    return max(output.step for output in outputs if any(f.request_id in names for f in output.finished))


def _latencies(past: Past, measured: Recorder, predicted: Recorder, answers: list[Answer]) -> Table:
    """Measured at the engine and at the client, beside predicted, in milliseconds."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("milliseconds", no_wrap=True, max_width=26)
    for name in ("TTFT", "simulated", "at client", "TPOT", "simulated"):
        table.add_column(name, justify="right")
    rows = {name: row for row, name in enumerate(measured.columns.request_id)}
    there, here = request_times(measured), request_times(predicted)
    totals = []
    for number, (name, answer) in enumerate(zip(past.submits, answers, strict=True)):
        row = rows[name]
        values = (
            there.ttft_s[row],
            here.ttft_s[number],
            answer.first_s - answer.asked_s,
            there.tpot_s[row],
            here.tpot_s[number],
        )
        totals.append(values)
        table.add_row(answer.question, *(f"{value * 1e3:.1f}" for value in values))
    table.add_row("mean", *(f"{value * 1e3:.1f}" for value in np.mean(totals, axis=0)), style="bold")
    return table


def _compare(console: Console, real: DemoRun, predicted: DemoRun, past: Past) -> bool:
    """Say whether both worlds took the same decisions at the same times; returns it."""
    ours, theirs = decisions(real.journal.outputs), decisions(predicted.journal.outputs)
    same_answers = sum(
        past.output_tokens[name] == tokens for name, tokens in Past.of(real.journal).output_tokens.items()
    )
    if ours == theirs:
        num_chunks = sum(len(batch.chunks) for _, batch in ours)
        console.print(
            f"The torch backend on the virtual clock and the cost backend formed the same"
            f" {len(ours)} batches ({num_chunks} prefill chunks, {len(past.submits)} requests)"
            " at the same instants.",
            style="bold green",
        )
    else:
        index = next(
            (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
            min(len(ours), len(theirs)),
        )
        console.print(f"The worlds differ from batch {index} on:", style="bold red")
        console.print(ours[index : index + 1], theirs[index : index + 1])
    console.print(f"{same_answers} of {len(past.submits)} answers came out token for token as over HTTP.")
    return ours == theirs


def _where_next(console: Console, seconds: float) -> None:
    console.rule("Where to go next")
    console.print(
        "sundog serve                    talk to this model at 127.0.0.1:8000/v1\n"
        "sundog validate --self          predicted beside measured under load, two minutes\n"
        "sundog emulate --gpu h100    the same server at the pace of an absent GPU\n"
        "sundog replay TRACE --gpu h100  hours of traffic in seconds; see traces/\n"
        "sundog explain DIR --request ID why a request of a recorded run waited\n"
        "README.md                       how a request walks through the graph",
        markup=False,
    )
    console.print(f"This page took {seconds:.0f} s.", style="dim")
