"""Simulated drafts: accepted at the given rates, with the engine's own scheduler."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sundog.actors.config import EngineConfig, SchedulerConfig
from sundog.actors.config.speculative import MeasuredRates, SpeculativeConfig
from sundog.actors.core.batch import Batch, StepResult
from sundog.actors.core.config import ConfigError
from sundog.actors.engine.backend import Backend
from sundog.actors.front.codec import Vocabulary
from sundog.actors.messages import Capacity, Generate, StepOutput
from sundog.sim.backend import CostBackend, Pace, Paced
from sundog.sim.cost.composed import WithDrafts
from sundog.sim.cost.roofline import Roofline
from sundog.sim.cost.work import StepWork
from sundog.sim.explain.load import load
from sundog.sim.hardware.gpu import load_gpu
from sundog.sim.hardware.model import load_model
from sundog.sim.record.journal import Journal, Past, decisions
from sundog.sim.replay import replay_on
from sundog.sim.speculated import AcceptanceModel, Lengths, Speculated, shrunk
from sundog.sim.trace.record import TraceRequest
from tests.sundog.test_options import TRACE, sundog
from tests.test_worlds import CAPACITY, COST, config, requests

GIVEN = '{"method": "ngram", "num_speculative_tokens": 3, "acceptance": [0.8, 0.5, 0.2]}'
REPLAY = ("replay", TRACE, "--limit", "60", "--json", "--num-gpu-blocks", "9000")


def summary(*options: str) -> dict[str, object]:
    ended = sundog(*REPLAY, *options)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, object] = json.loads(ended.stdout)
    return found


def test_what_drafts_switch_off_is_said_in_one_line() -> None:
    """Beside a draft model, too; not where it was asked for."""
    said = "async scheduling is off with n-gram drafts, as in vLLM\n"
    run = (*REPLAY, "--limit", "3", "--speculative-config", GIVEN)
    assert said in sundog(*run).stderr
    assert said not in sundog(*run, "--no-async-scheduling").stderr
    refused = sundog(*run, "--async-scheduling")
    assert refused.returncode == 2 and "leave --async-scheduling out" in refused.stderr


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_replay_accepts_as_many_drafts_as_it_was_told(tmp_path: Path) -> None:
    """In fewer steps; every request has its tokens, and the same command gives the same bytes."""
    plain, drafted = summary("--no-async-scheduling"), summary("--speculative-config", GIVEN)
    figures = drafted["speculation"]
    assert isinstance(figures, dict) and "speculation" not in plain
    assert figures["rates_by_position"] == pytest.approx([0.8, 0.5, 0.2], abs=0.02)
    assert figures["mean_length"] == pytest.approx(2.5, abs=0.03)
    assert figures["num_draft_tokens"] == 3 * figures["num_drafts"]
    for name in ("num_finished", "prompt_tokens", "output_tokens"):
        assert drafted[name] == plain[name]
    assert drafted["num_steps"] < plain["num_steps"]  # type: ignore[operator]  # both are numbers
    assert drafted["tpot_s"]["mean"] < 0.6 * plain["tpot_s"]["mean"]  # type: ignore[index]  # as above
    assert drafted == summary("--speculative-config", GIVEN, "--out", str(tmp_path / "run"))
    steps = pq.read_table(tmp_path / "run" / "steps.parquet")
    assert sum(steps["num_drafts"].to_pylist()) == figures["num_draft_tokens"]
    accepted = sum(steps["num_accepted"].to_pylist())
    assert 1 + accepted / figures["num_drafts"] == pytest.approx(figures["mean_length"])
    assert drafted == summary("--speculative-config", GIVEN, "--no-decode-runs")


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_small_pool_preempts_amid_drafts_and_loses_nothing() -> None:
    options = ("--num-gpu-blocks", "300", "--max-model-len", "4096", "--debug")
    plain, drafted = summary(*options), summary(*options, "--speculative-config", GIVEN)
    assert drafted["num_preemptions"] and drafted["output_tokens"] == plain["output_tokens"]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_record_says_what_was_accepted(tmp_path: Path) -> None:
    """The journal of a run gives its rates back; explain counts every token of it."""
    place = tmp_path / "run"
    first = sundog(*REPLAY, "--speculative-config", GIVEN, "--out", str(place))
    assert first.returncode == 0, first.stderr
    again = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": str(place)}
    figures = summary("--speculative-config", json.dumps(again))["speculation"]
    assert isinstance(figures, dict)
    assert figures["rates_by_position"] == pytest.approx([0.8, 0.5], abs=0.02)
    history = load(place)
    tokens = sum(request.num_output_tokens for request in history.requests.values())
    assert tokens == json.loads(first.stdout)["output_tokens"]


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, "acceptance is missing"),
        ({"acceptance": 1.5}, "a number from 0 to 1"),
        ({"acceptance": [0.5, 0.4]}, "one for each of the 3 positions"),
        ({"acceptance": [0.5, 0.6, 0.1]}, "cannot have a higher chance"),
        ({"acceptance": [0.5, "x", 0.1]}, "a number from 0 to 1"),
        ({"acceptance": "NOWHERE"}, "NOWHERE does not exist"),
        ({"acceptance": 0.5, "proposed": "x"}, "proposed is"),
        ({"acceptance": TRACE}, "is no journal"),
    ],
)
def test_rates_that_cannot_be_are_refused_in_one_line(asked: dict[str, object], why: str) -> None:
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 3} | asked)
    ended = sundog(*REPLAY, "--speculative-config", config)
    assert ended.returncode == 2 and why in ended.stderr, ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_draft_model_costs_time_and_memory_and_needs_the_vocabulary() -> None:
    """It must be of the model's family; `cost` prices its passes."""

    def asked(model: str, **keys: object) -> tuple[str, str]:
        config = {"model": model, "num_speculative_tokens": 4, "acceptance": 0.7} | keys
        return "--speculative-config", json.dumps(config)

    refused = sundog(*REPLAY, *asked("qwen3-0.6b"))
    assert refused.returncode == 2 and "has a vocabulary of 151936 tokens" in refused.stderr
    free = summary(
        "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "acceptance": 0.7}'
    )
    drafted = summary(*asked("llama-3.2-1b"))
    assert drafted["tpot_s"]["mean"] > 1.2 * free["tpot_s"]["mean"]  # type: ignore[index]  # distributions
    assert drafted["num_kv_blocks"] == free["num_kv_blocks"] == 8999
    run = ("replay", TRACE, "--limit", "5", "--json")
    with_draft = json.loads(sundog(*run, *asked("llama-3.2-1b")).stdout)
    assert with_draft["num_kv_blocks"] < 0.9 * json.loads(sundog(*run).stdout)["num_kv_blocks"]


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_a_sweep_takes_drafts() -> None:
    ended = sundog(
        "sweep", TRACE, "--limit", "20", "--vary", "max-num-seqs=8,16", "--speculative-config", GIVEN
    )
    assert ended.returncode == 0, ended.stderr


def test_drafting_is_priced_pass_by_pass() -> None:
    """The first pass has the step's tokens, each further one a token of each request."""
    gpu = load_gpu("h100")
    model = Roofline(load_model("llama-3.1-8b"), gpu)
    draft = Roofline(load_model("llama-3.2-1b"), gpu)
    cost = WithDrafts(model, draft, 3)
    work = StepWork(4, 4008, ((100, 0),), 4 + 8 + 1, 0, 8)
    first, later = StepWork(4, 4008, ((100, 0),), 5, 0, 8), StepWork(5, 4008 + 101, (), 5)
    after = StepWork(5, 4008 + 106, (), 5)
    expected = model.step_s(work) + draft.step_s(first) + draft.step_s(later) + draft.step_s(after)
    assert cost.step_s(work) == pytest.approx(expected, rel=1e-12)
    assert cost.step_s(StepWork(0, 0)) == 0.0
    plain = StepWork(4, 4000, (), 4)
    assert cost.run_s(plain, 2).tolist() == [cost.step_s(plain), cost.step_s(StepWork(4, 4004, (), 4))]


def test_the_rates_are_met_and_depend_on_request_and_position_alone() -> None:
    asked = SpeculativeConfig("ngram", 3, acceptance=0.6, proposed=(0.9, 0.5, 0.5))
    model = AcceptanceModel.of(asked, seed=3)
    drawn = [model.draw(model.key(f"r{n // 100}"), n % 100) for n in range(20_000)]
    assert drawn == [model.draw(model.key(f"r{n // 100}"), n % 100) for n in range(20_000)]
    assert all(accepted <= proposed for proposed, accepted in drawn)
    for position, (proposed, accepted) in enumerate(
        zip((0.9, 0.5, 0.5), (0.54, 0.324, 0.1944), strict=True), 1
    ):
        assert sum(p >= position for p, _ in drawn) / len(drawn) == pytest.approx(proposed, abs=0.015)
        assert sum(a >= position for _, a in drawn) / len(drawn) == pytest.approx(accepted, abs=0.015)
    other = AcceptanceModel.of(asked, seed=4)
    assert drawn[:100] != [other.draw(other.key("r0"), n) for n in range(100)]
    with pytest.raises(ConfigError, match="acceptance is missing"):
        AcceptanceModel.of(replace(asked, acceptance=None))


class Noted:
    """A backend, and the drafts that it kept: by request and number of output tokens."""

    def __init__(self, backend: Paced) -> None:
        self._backend = backend
        self.offered: dict[tuple[str, int], int] = {}
        self._num_tokens: dict[str, int] = {}

    async def load(self) -> Capacity:
        return await self._backend.load()

    async def execute(self, batch: Batch) -> StepResult:
        result = await self._backend.execute(batch)
        for name, _ in result.tokens or ():
            self._num_tokens[name] = self._num_tokens.get(name, 0) + 1
        for name, count in result.drafts:
            self.offered[name, self._num_tokens[name]] = count
        return result

    async def close(self) -> None:
        await self._backend.close()


class Recorded:
    """The very drafts of a run, and how many of them were accepted."""

    def __init__(self, noted: Noted, outputs: list[StepOutput]) -> None:
        self._offered = noted.offered
        self._names: list[str] = []
        self._accepted: dict[tuple[str, int], int] = {}
        num_tokens: dict[str, int] = {}
        for output in outputs:
            for name, count in output.accepted:
                self._accepted[name, num_tokens[name]] = count
            for name, _ in output.tokens or ():
                num_tokens[name] = num_tokens.get(name, 0) + 1

    def key(self, request_id: str) -> tuple[int, int]:
        self._names.append(request_id)
        return len(self._names) - 1, 0

    def draw(self, key: tuple[int, int], num_tokens: int) -> tuple[int, int]:
        at = self._names[key[0]], num_tokens
        return self._offered.get(at, 0), self._accepted.get(at, 0)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(("method", "seed"), [("ngram", 0), ("draft_model", 1)])
def test_both_worlds_form_the_same_batches_with_drafts(seed: int, method: str) -> None:
    """Torch with real drafts, and a simulation that accepts as many: block for block, instant for instant."""
    torch = pytest.importorskip("torch", reason="the engine extra is not installed")
    torch.set_num_threads(1)
    from sundog.runtime.serve import EMBEDDED_MODEL, RealModel, torch_backends

    own = str(EMBEDDED_MODEL) if method == "draft_model" else None
    asked = SpeculativeConfig(method, 3, model=own, lookup_min=1, lookup_max=3)
    settings = config()
    limits: SchedulerConfig = replace(
        settings.scheduler, num_speculative_tokens=3, num_lookahead_tokens=asked.num_lookahead_tokens
    )
    settings = replace(settings, scheduler=limits, speculation=asked)
    rows, generate_for = requests(seed)
    model, real = RealModel.open(None), Journal()
    backend = Noted(Paced(torch_backends(model, settings, dtype="float32")(0), Pace(COST, "runner-0")))
    play(settings, rows, backend, generate_for, real, vocabulary=model.vocabulary)
    past, simulated = Past.of(real), Journal()
    trace = past.trace()
    lengths = Lengths({row.request_id: row.num_output_tokens for row in trace})
    source = Speculated(lengths, Recorded(backend, real.outputs))
    play(settings, trace, CostBackend(Pace(COST, "runner-0"), source, CAPACITY), past.counted, simulated)
    assert sum(len(output.batch.preempted) for output in real.outputs) > 0, "nothing was preempted"
    assert sum(count for output in real.outputs for _, count in output.accepted) > 0
    assert decisions(simulated.outputs) == decisions(real.outputs)


def play(
    settings: EngineConfig,
    rows: list[TraceRequest],
    backend: Backend,
    generate_for: Callable[[TraceRequest], Generate],
    journal: Journal,
    vocabulary: Vocabulary | None = None,
) -> None:
    replay_on(
        rows,
        settings,
        [backend],
        CAPACITY,
        generate_for=generate_for,
        listeners=[journal],
        vocabulary=vocabulary,
    )


def answers(path: Path, count: int, num_tokens: int) -> str:
    """Write a trace of equal requests that never wait for each other."""
    rows = "".join(f"{0.2 * number:.1f},64,{num_tokens}\n" for number in range(count))
    path.write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}")
    return str(path)


def drafted(trace: str, acceptance: object, *options: str) -> dict[str, Any]:
    asked = {"method": "ngram", "num_speculative_tokens": 4, "acceptance": acceptance}
    given = ("--num-gpu-blocks", "9000", "--speculative-config", json.dumps(asked), "--json")
    ended = sundog("replay", trace, *given, *options)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.long(reason="runs commands in processes of their own", moderate=True)
def test_rates_of_acceptance_do_not_depend_on_the_lengths_of_answers(tmp_path: Path) -> None:
    """The sampler accepts drafts before the answer is cut: 0.8 is 0.8, also in answers of 6 tokens."""
    short = answers(tmp_path / "short.csv", 1500, 6)
    figures = drafted(short, 0.8, "--out", str(tmp_path / "run"))["speculation"]
    assert figures["rates_by_position"] == pytest.approx([0.8, 0.64, 0.512, 0.4096], abs=0.03)
    assert figures["mean_length"] == pytest.approx(1 + 0.8 + 0.64 + 0.512 + 0.4096, abs=0.1)
    said = json.loads(sundog("explain", str(tmp_path / "run"), "--json").stdout)["speculation"]
    assert said == figures
    steps = pq.read_table(tmp_path / "run" / "steps.parquet")
    assert sum(steps["num_accepted"].to_pylist()) == figures["num_accepted_tokens"]
    always = drafted(answers(tmp_path / "three.csv", 20, 3), 1.0)["speculation"]
    assert always["rates_by_position"] == [1.0] * 4 and always["acceptance_rate"] == 1.0


def test_the_case_of_300_short_answers_is_off_by_chance_alone() -> None:
    """Seed 0 of the command line has 0.62 and 3.48 in 516 decodes: 1.6 standard errors, other seeds less.

    A decode accepts 0.8 + 0.64 + 0.512 + 0.4096 = 2.3616 drafts; E[K^2] = 0.8 + 3 x 0.64 + 5 x 0.512 + 7 x
    0.4096 = 8.1472, so that their variance is 2.57 and the error of a mean of 516 is 0.0706. 40 seeds have
    it within 3 errors of their own mean, 0.011 each.
    """
    mean, variance = 2.3616, 8.1472 - 2.3616**2
    num_decodes, num_accepted = [], []
    for seed in range(40):
        model = AcceptanceModel.of(SpeculativeConfig("ngram", 4, acceptance=0.8), seed)
        counts = [count for number in range(300) for count in accepted_of(model, f"r{number}", 6)]
        num_decodes.append(len(counts))
        num_accepted.append(sum(counts))
    errors = [
        (accepted / decodes - mean) / (variance / decodes) ** 0.5
        for accepted, decodes in zip(num_accepted, num_decodes, strict=True)
    ]
    assert max(map(abs, errors)) < 3 and sum(map(abs, errors)) / 40 == pytest.approx(0.8, abs=0.25)
    total = sum(num_decodes)
    assert sum(num_accepted) / total == pytest.approx(mean, abs=3 * (variance / total) ** 0.5)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize("chances", [(0.8,), (0.5, 0.9), (0.6, 0.7, 0.8, 0.95)])
@pytest.mark.parametrize("names", ["short", "long"])
def test_a_record_of_short_answers_predicts_long_ones_of_all_names(
    names: str, chances: tuple[float, ...]
) -> None:
    """Steps are within 3 %, where the error of such a record is 0.8: also where requests are not alike."""
    models = [AcceptanceModel.of(SpeculativeConfig("ngram", 4, acceptance=chance)) for chance in chances]
    truth = {f"short{number}": models[number % len(models)] for number in range(1500)}
    record = AcceptanceModel.of(SpeculativeConfig("ngram", 4, measured=measured_of(truth, 6)))
    right = sum(1 for name, model in truth.items() for _ in accepted_of(model, f"long {name}", 300))
    found = sum(1 for number in range(1500) for _ in accepted_of(record, f"{names}{number}", 300))
    assert found == pytest.approx(right, rel=0.03)


def test_shrunk_rates_are_nearer_than_those_measured_and_those_of_all() -> None:
    """By squared errors of the tokens a decode; of long answers those measured are as good."""
    models = [AcceptanceModel.of(SpeculativeConfig("ngram", 4, acceptance=chance)) for chance in (0.5, 0.9)]
    truth = {f"r{number}": models[number % 2] for number in range(600)}
    right = [sum(model.rates[0][1]) for model in truth.values()]
    for num_tokens in (6, 30, 300):
        measured = list(measured_of(truth, num_tokens).values())
        own = [each.accepted for each in measured]
        num_decodes = [each.num_decodes for each in measured]
        all_ = sum(sum(r) * n for r, n in zip(own, num_decodes, strict=True)) / sum(num_decodes)
        errors = [
            sum((value - wanted) ** 2 for value, wanted in zip(values, right, strict=True))
            for values in (map(sum, shrunk(own, num_decodes)), map(sum, own), [all_] * 600)
        ]
        assert errors[0] < 0.9 * errors[2] and errors[0] < (0.8 if num_tokens == 6 else 1.001) * errors[1]


def test_rates_shrink_by_the_share_of_variance_between_requests() -> None:
    """8 and 2 of 10: (9 + 9 - 20 / 4) / (180 / 4) = 13 / 45 of it, so that 130 of 162 parts are their own.

    6 and 4 of 10 differ by 1 + 1, where chance alone gives 20 / 4.
    """
    first, second = shrunk([(0.8,), (0.2,)], [10, 10])
    assert first == pytest.approx((0.5 + 0.3 * 130 / 162,))
    assert second == pytest.approx((0.5 - 0.3 * 130 / 162,))
    assert shrunk([(0.6,), (0.4,)], [10, 10]) == [(0.5,), (0.5,)]
    assert shrunk([(1.0, 1.0), (1.0, 1.0)], [1, 3]) == [(1.0, 1.0)] * 2
    assert shrunk([(1.0, 0.0), (0.0, 0.0)], [1, 1]) == [(0.5, 0.0)] * 2
    never, always = shrunk([(0.0,), (1.0,)], [1000, 1000])
    assert never[0] < 0.001 and always[0] > 0.999


def measured_of(truth: dict[str, AcceptanceModel], num_tokens: int) -> dict[str, MeasuredRates]:
    """Return what a record of answers of so many tokens says of each request."""
    measured = {}
    for name, model in truth.items():
        counts = list(accepted_of(model, name, num_tokens))
        rates = tuple(sum(count > position for count in counts) / len(counts) for position in range(4))
        measured[name] = MeasuredRates((1.0,) * 4, rates, len(counts), len(counts) + sum(counts))
    return measured


def accepted_of(model: AcceptanceModel, name: str, num_tokens: int) -> Iterator[int]:
    """The drafts accepted in each decode of an answer, also behind its end."""
    key, length = model.key(name), 1
    while length < num_tokens:
        count = model.draw(key, length)[1]
        yield count
        length += 1 + count


@pytest.mark.long(reason="replays many requests, or many random cases", moderate=True)
def test_a_record_of_short_answers_predicts_long_ones(tmp_path: Path) -> None:
    """Its rates are those of the drafts: TPOT is what the rates themselves give."""
    drafted(answers(tmp_path / "short.csv", 1500, 6), 0.8, "--out", str(tmp_path / "run"))
    long = answers(tmp_path / "long.csv", 200, 300)
    given, record = drafted(long, 0.8), drafted(long, str(tmp_path / "run"))
    assert record["tpot_s"]["mean"] == pytest.approx(given["tpot_s"]["mean"], rel=0.02)
