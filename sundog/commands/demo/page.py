"""Main features on one page: a real model answers over HTTP, and its simulation agrees with it.

Serve the embedded model; calibrate a cost model from the steps of some questions, send others in several
repetitions, and predict those by simulation. First comes the exact part: the torch backend on the virtual
clock and the cost backend, compared batch by batch. Then come times, with the variation between repetitions
of the same questions.
"""

import gc
import json
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from statistics import fmean, median

import trio
from rich.console import Console

from sundog.actors.api.context import ServedModel
from sundog.actors.api.serve_graph import serve_graph
from sundog.actors.api.server_options import ServerOptions
from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.engine.backend import Backend
from sundog.actors.kernel.actor import Actor
from sundog.actors.messages import Capacity, Heard, StepOutput
from sundog.builds.measuring import Cores, disturbed
from sundog.builds.server import OFTEN
from sundog.commands.demo.client import NUM_ROUNDS, PRACTICE, QUESTIONS, Answer, answers_table, name_of
from sundog.commands.demo.practice import ArrivalPace, Met, PractisedCost, learn
from sundog.commands.demo.times import TimesBeside
from sundog.runtime.host.python import module_command
from sundog.runtime.serve import RealModel, torch_backends
from sundog.sim.backend import CostBackend, Paced
from sundog.sim.client import Recording
from sundog.sim.oracle import Oracle
from sundog.sim.record.journal import Journal, Observation, Past, decisions, observations
from sundog.sim.record.recorder import Recorder
from sundog.sim.replay import replay_on
from sundog.sim.show.console import console_for
from sundog.sim.show.timeline import timeline

NUM_BLOCKS = 64
LIMITS = SchedulerConfig(
    max_model_len=512,
    max_num_batched_tokens=32,
    max_num_seqs=4,
    num_gpu_blocks=NUM_BLOCKS,
    enable_prefix_caching=False,
)
"""Limits, small enough that requests wait; without a prefix cache, so that repetitions have equal work."""
CONFIG = EngineConfig(scheduler=LIMITS)
CAPACITY = Capacity(NUM_BLOCKS, LIMITS.block_size)


@dataclass(slots=True)
class DemoRun:
    """Records of a run of the graph."""

    journal: Journal = field(default_factory=Journal)
    recorder: Recorder = field(default_factory=lambda: Recorder(NUM_BLOCKS))

    def listeners(self) -> list[Actor[Heard]]:
        return [self.journal, Recording(self.recorder)]


def simulated(past: Past, cost: PractisedCost) -> DemoRun:
    """Run the cost backend on the virtual clock; only the oracle has the lengths of answers."""
    run, trace = DemoRun(), past.trace()
    oracle = Oracle({request.request_id: request.num_output_tokens for request in trace})
    backend = CostBackend(_pace(past, cost), oracle, CAPACITY)
    run.recorder = replay_on(
        trace, CONFIG, [backend], CAPACITY, generate_for=past.counted, listeners=[run.journal]
    )
    return run


def computed(past: Past, model: RealModel, cost: PractisedCost, seed: int) -> DemoRun:
    """Run the torch backend on the virtual clock, with the cost model's step times."""
    run = DemoRun()
    backend = Paced(torch_backends(model, CONFIG, seed=seed)(0), _pace(past, cost))
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


def _pace(past: Past, cost: PractisedCost) -> ArrivalPace:
    return ArrivalPace(cost, [request.arrival_s for request in past.trace()], "runner-0")


async def serve_and_ask(
    model: RealModel, run: DemoRun, new_backend: Callable[[int], Backend]
) -> list[Answer]:
    """Serve on a free port until a client process has its answers; return them."""
    stop, ready, urls = trio.Event(), trio.Event(), list[str]()

    def on_ready(url: str) -> None:
        urls.append(url)
        gc.freeze()
        gc.set_threshold(*OFTEN)
        ready.set()

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
        command = module_command("sundog.commands.demo.client", urls[0])
        done = await trio.run_process(command, capture_stdout=True)
        stop.set()
    return [Answer(**answer) for answer in json.loads(done.stdout)]


def run_demo(seed: int) -> int:
    """Print the page; return 0 if the worlds agreed, 1 if not."""
    console, cores = console_for(), Cores()
    started = time.monotonic()
    console.rule("A real model answers, over HTTP")
    model = RealModel.open(None)
    served, new_backend = DemoRun(), torch_backends(model, CONFIG, seed=seed)
    answers = trio.run(serve_and_ask, model, served, new_backend)
    warning = disturbed(cores.others())
    console.print(answers_table(answers))
    outputs, pasts = served.journal.outputs, _by_round(served.journal, QUESTIONS)
    asked = _steps(outputs, pasts[0].submits)
    console.rule("What its scheduler did")
    watched = [output for output in outputs if output.step in asked]
    console.print(timeline(pasts[0].submits, watched, QUESTIONS))
    practice = practised(served.journal)
    met = meetings(served.journal)
    cost = learn(practice, met)
    predicted = [simulated(past, cost) for past in pasts]
    console.rule("Both worlds, step by step")
    agreed = _compare(console, [computed(past, model, cost, seed) for past in pasts], predicted, pasts)
    console.rule("How long it took, and how long the simulation says")
    TimesBeside.of(
        QUESTIONS,
        [list(past.submits) for past in pasts],
        served.recorder,
        [run.recorder for run in predicted],
    ).show(console)
    console.print(
        f"The cost of a step was fitted to {sum(map(len, practice)):,} steps of other questions, asked"
        " between repetitions.",
        style="dim",
    )
    asked_again = [_steps(outputs, past.submits) for past in pasts[1:]]
    if abs(change := _change(outputs, asked_again, cost, met)) > CHANGED:
        longer = "longer" if change > 0 else "shorter"
        console.print(
            f"Steps of the same kind took {abs(change):.0%} {longer} in the questions than in the practice"
            " before them: the machine's own speed changed, which no model of steps can know."
        )
    if warning is not None:
        console.print(f"Here {warning}.")
    _where_next(console, time.monotonic() - started)
    return 0 if agreed else 1


CHANGED = 0.05
"""Relative change of the machine's speed between practice and questions that the page mentions."""


def _change(
    outputs: Sequence[StepOutput], rounds: Sequence[range], cost: PractisedCost, met: Mapping[int, Met]
) -> float:
    """Return the relative increase of step times over practice: the median over repetitions."""
    steps = list(observations(outputs))
    ratios = []
    for asked in rounds:
        own = [step for step in steps if step.step in asked]
        arrivals_s = cost.arrival_s * sum(met[step.step].num for step in own if step.step in met)
        practised_s = arrivals_s + sum(cost.step_s(step.work) for step in own)
        ratios.append(sum(step.seconds for step in own) / practised_s)
    return median(ratios) - 1


def practised(journal: Journal) -> list[list[Observation]]:
    """Return the steps of each repetition of practice."""
    arrivals_s = {submit.request_id: submit.arrival_s for submit in journal.submits}
    steps = list(observations(journal.outputs, arrivals_s))
    rounds = [
        _steps(journal.outputs, past.submits) for past in _by_round(journal, PRACTICE, is_practice=True)
    ]
    return [[step for step in steps if step.step in asked] for asked in rounds]


def meetings(journal: Journal) -> dict[int, Met]:
    """Return, by step, the requests that arrived while it ran, if any did."""
    arrivals_s = {submit.request_id: submit.arrival_s for submit in journal.submits}
    in_order_s = sorted(arrivals_s.values())
    found: dict[int, Met] = {}
    ended_s: float | None = None
    for output, after in pairwise([*journal.outputs, None]):
        assert output is not None
        begin_s = output.start_s if ended_s is None else ended_s
        end_s = output.end_times_s[-1]
        if num := bisect_right(in_order_s, end_s) - bisect_right(in_order_s, begin_s):
            came_s = [arrivals_s[each.request_id] for each in after.batch.admitted] if after else []
            waited_s = [end_s - each_s for each_s in came_s if begin_s < each_s <= end_s]
            found[output.step] = Met(num, fmean(waited_s) if waited_s else None)
        ended_s = end_s if output.num_running else None
    return found


def _by_round(journal: Journal, questions: Sequence[str], *, is_practice: bool = False) -> list[Past]:
    past = Past.of(journal)
    names = {submit.session: name for name, submit in past.submits.items()}
    rounds = [
        [names[name_of(turn, n, is_practice=is_practice)] for n in range(len(questions))]
        for turn in range(NUM_ROUNDS)
    ]
    return [replace(past, submits={name: past.submits[name] for name in asked}) for asked in rounds]


def _steps(outputs: Sequence[StepOutput], names: Collection[str]) -> range:
    begun = (o.step for o in outputs if any(each.request_id in names for each in o.batch.admitted))
    ended = (o.step for o in outputs if any(each.request_id in names for each in o.finished))
    return range(min(begun), max(ended) + 1)


def _compare(
    console: Console, real: Sequence[DemoRun], predicted: Sequence[DemoRun], pasts: Sequence[Past]
) -> bool:
    ours, theirs = ([decisions(run.journal.outputs) for run in runs] for runs in (real, predicted))
    num_answers = sum(len(past.submits) for past in pasts)
    num_same = sum(
        past.output_tokens[name] == tokens
        for run, past in zip(real, pasts, strict=True)
        for name, tokens in Past.of(run.journal).output_tokens.items()
    )
    if ours == theirs:
        num_batches = sum(map(len, ours))
        num_chunks = sum(len(batch.chunks) for run in ours for _, batch in run)
        console.print(
            "The torch backend on the virtual clock and the cost backend formed the same"
            f" {num_batches} batches ({num_chunks} prefill chunks, {num_answers} requests in {len(pasts)}"
            " rounds) at the same instants.",
            style="bold green",
        )
    else:
        pairs = zip(chain(*ours), chain(*theirs), strict=False)
        first = next((pair for pair in pairs if pair[0] != pair[1]), None)
        console.print("The worlds differ, first in this batch:", style="bold red")
        console.print(*(first or ("one of them formed more batches",)))
    console.print(f"{num_same} of {num_answers} answers came out token for token as over HTTP.")
    return ours == theirs


def _where_next(console: Console, seconds: float) -> None:
    console.rule("Where to go next")
    console.print(
        "sundog serve                    talk to this model at 127.0.0.1:8000/v1\n"
        "sundog calibrate MODEL -o FILE  measure this machine's engine, to simulate it\n"
        "sundog emulate --gpu h100    the same server at the pace of an absent GPU\n"
        "sundog replay TRACE --gpu h100  hours of traffic in seconds; see traces/\n"
        "sundog explain DIR --request ID why a request of a recorded run waited\n"
        "README.md                       how a request walks through the graph",
        markup=False,
    )
    console.print(f"This page took {seconds:.0f} s.", style="dim")
