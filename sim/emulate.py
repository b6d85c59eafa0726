"""Emulation: the real server in front of a GPU that is not there, answering at its pace."""

from collections.abc import Callable, Sequence

from actors.messages import Capacity
from actors.speculative_config import SpeculativeConfig
from sim.acceptance import AcceptanceModel
from sim.backend import CostBackend, Pace
from sim.canned_text import canned_text
from sim.cost.work import CostModel
from sim.made_up_logprobs import MadeUpLogprobs
from sim.speculated import Speculated, Texts
from sim.token_source import TokenSource

CATCH_UP_S = 0.05
"""How far a step may begin before now, to make up for the host's time between two steps."""

TEXTS = (
    "This answer comes from a simulated GPU. The words are canned, but their timing is not: each"
    " token arrives when the cost model says that the hardware would have produced it.",
    "There is no model behind this sentence. What you can study here is the rhythm: how long the"
    " first token takes, how steadily the others follow, and what happens under load.",
    "Once upon a time a scheduler had more requests than memory. It admitted the first, preempted"
    " the last, and in the end everyone was served, because nobody was forgotten.",
    "A request waits for one of three things: a place in the batch, a share of the token budget,"
    " or blocks of memory for its keys and values. Ask the report which one it was.",
)


def emulated_backends(
    cost: CostModel,
    capacity: Capacity,
    encode: Callable[[str], Sequence[int]],
    eos_token_id: int,
    vocab_size: int,
    seed: int = 0,
    speculation: SpeculativeConfig | None = None,
) -> Callable[[int], CostBackend]:
    """What makes the backend of a replica, which answers with canned text at the pace of `cost`."""
    texts = [tuple(encode(text)) for text in TEXTS]
    drafts = None if speculation is None else AcceptanceModel.of(speculation, seed)

    def tokens() -> TokenSource:
        canned = canned_text(texts, eos_token_id, seed)
        return canned if drafts is None else Speculated(Texts(canned.tokens_of, eos_token_id), drafts)

    def new_backend(replica: int) -> CostBackend:
        pace = Pace(cost, f"runner-{replica}", catch_up_s=CATCH_UP_S)
        source = MadeUpLogprobs(tokens(), vocab_size)
        return CostBackend(pace, source, capacity)

    return new_backend
