"""The same requests on the virtual clock in both worlds: torch, paced by the cost model, and that alone."""

from dataclasses import replace

from actors.config import ConfigError
from actors.core.params.sampling import Sampling
from actors.engine.backend import Backend
from actors.messages import Generate
from runtime.load.prompts import Prompts, Units
from runtime.serve import RealModel, torch_backends
from sim.backend import CostBackend, Pace, Paced
from sim.oracle import Oracle
from sim.record.journal import Journal, decisions
from sim.replay import replay_on
from sim.trace.record import TraceRequest
from sundog.builds.simulated import Simulated


def same_batches(real: RealModel, simulated: Simulated, rows: list[TraceRequest]) -> int:
    """How many batches both worlds formed. Raises ConfigError where they differ, with the first that does."""
    config = replace(simulated.config, decode_runs=False)
    ids = range(real.tokenizer.vocab_size // 4, real.tokenizer.vocab_size // 2)
    prompts = Prompts(Units(ids=ids), "worlds")

    def exact(row: TraceRequest) -> Generate:
        sampling = Sampling(temperature=0.0, max_tokens=row.num_output_tokens, ignore_eos=True)
        return Generate(tuple(prompts.of(row)), sampling, row.request_id)  # type: ignore[arg-type]  # ids, no text

    def counted(row: TraceRequest) -> Generate:
        return Generate(row.num_prompt_tokens, Sampling(max_tokens=row.num_output_tokens), row.request_id)

    def played(backend: Backend, is_real: bool) -> Journal:
        journal = Journal()
        replay_on(
            rows,
            config,
            [backend],
            simulated.capacity,
            generate_for=exact if is_real else counted,
            listeners=[journal],
            vocabulary=real.vocabulary if is_real else None,
        )
        return journal

    pace = Pace(simulated.cost, "runner-0")
    torch = played(Paced(torch_backends(real, config)(0), Pace(simulated.cost, "runner-0")), True)
    oracle = Oracle({row.request_id: row.num_output_tokens for row in rows})
    ours = decisions(played(CostBackend(pace, oracle, simulated.capacity), False).outputs)
    theirs = decisions(torch.outputs)
    for index, pair in enumerate(zip(theirs, ours, strict=False)):
        if pair[0] != pair[1]:
            raise ConfigError(f"the worlds differ from batch {index} on: {pair[0]} and {pair[1]}")
    if len(ours) != len(theirs):
        raise ConfigError(f"torch formed {len(theirs)} batches, and the cost model {len(ours)}")
    return len(ours)
