"""Reference runner: applies batches exactly as `core/batch.py` specifies, and checks each one.

It models every slot of the KV cache as the whole token prefix up to that slot, which is what its key and
value depend on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sundog.actors.core.batch import Admission, Batch

Prefix = int
"""A hash of a request's tokens up to one of them."""


@dataclass
class Folded:
    """One request as the runner knows it."""

    tokens: list[int]
    num_prompt_tokens: int
    num_computed: int
    block_ids: list[int]
    prefixes: list[Prefix] = field(default_factory=list)
    decodes: bool = False

    def prefix(self, position: int) -> Prefix:
        """What the slot of this position must hold."""
        while len(self.prefixes) <= position:
            parent = self.prefixes[-1] if self.prefixes else 0
            self.prefixes.append(hash((parent, self.tokens[len(self.prefixes)])))
        return self.prefixes[position]


class ReferenceRunner:
    """Runs batches of a trace; `prompts` and `output` say what each token is, in either world."""

    def __init__(
        self,
        block_size: int,
        prompts: dict[str, list[int]],
        output: Callable[[str, int], int],
        *,
        keeps_slots: bool = True,
    ) -> None:
        self.block_size = block_size
        self.keeps_slots = keeps_slots
        """False where runs of steps are done: their later blocks are not said."""
        self.prompts = prompts
        self.output = output
        self.requests: dict[str, Folded] = {}
        self.slots: dict[int, Prefix] = {}
        self.last_step = 0

    def step(self, batch: Batch) -> list[tuple[str, int]]:
        """Do one step; the tokens sampled in it."""
        assert batch.step > self.last_step, "steps come in order"
        self.last_step = batch.step
        for name in (*batch.finished, *batch.preempted):
            self.requests.pop(name, None)
        for admission in batch.admitted:
            self._admit(admission)
        for name, block_ids in batch.new_blocks:
            self.requests[name].block_ids += block_ids
        assert set(batch.idle) <= {name for name, r in self.requests.items() if r.decodes}
        decoding = [n for n, r in self.requests.items() if r.decodes and n not in batch.idle]
        assert len(decoding) == batch.num_decodes
        computed = [(chunk.request_id, chunk.num_tokens) for chunk in batch.chunks]
        computed += [(name, 1) for name in decoding]
        assert len(dict(computed)) == len(computed), "a request is computed once a step"
        assert sum(num_tokens for _, num_tokens in computed) == batch.num_tokens
        for name, num_tokens in computed:
            self._write(self.requests[name], num_tokens)
        for name, _ in computed:
            self._read(name)
        sampling = [chunk.request_id for chunk in batch.chunks if chunk.samples]
        for name, request in self.requests.items():
            if name in dict(computed):
                caught_up = request.num_computed == len(request.tokens)
                assert caught_up == (name in sampling or request.decodes), name
        for name in sampling:
            self.requests[name].decodes = True
        return [self._sample(name) for name in (*decoding, *sampling)]

    def decode(self) -> list[tuple[str, int]]:
        """Another step of a run: a token each for all that decode. Block tables are not known."""
        self.last_step += 1
        decoding = [name for name, request in self.requests.items() if request.decodes]
        for name in decoding:
            self.requests[name].num_computed += 1
        return [self._sample(name) for name in decoding]

    def _admit(self, admission: Admission) -> None:
        name, num_tokens = admission.request_id, admission.num_tokens
        assert name not in self.requests, f"{name} runs already"
        prompt = self.prompts[name]
        assert admission.num_prompt_tokens == len(prompt)
        tokens = prompt + [self.output(name, i) for i in range(num_tokens - len(prompt))]
        assert admission.token_ids in (None, tuple(tokens))
        assert admission.num_computed_tokens < num_tokens, "something is left to compute"
        computed, blocks = admission.num_computed_tokens, list(admission.block_ids)
        self.requests[name] = Folded(tokens, len(prompt), computed, blocks)

    def _write(self, request: Folded, num_tokens: int) -> None:
        """Compute the next tokens, each of which must be known and have its slot."""
        for position in range(request.num_computed, request.num_computed + num_tokens):
            prefix = request.prefix(position)
            if self.keeps_slots:
                self.slots[self._slot(request, position)] = prefix
        request.num_computed += num_tokens

    def _read(self, name: str) -> None:
        """Attend to all computed tokens: each slot must hold this very prefix."""
        request = self.requests[name]
        for position in range(request.num_computed if self.keeps_slots else 0):
            held = self.slots.get(self._slot(request, position))
            assert held == request.prefix(position), f"{name} reads garbage at token {position}"

    def _slot(self, request: Folded, position: int) -> int:
        block = request.block_ids[position // self.block_size]
        assert block > 0, "block 0 is the null block"
        return block * self.block_size + position % self.block_size

    def _sample(self, name: str) -> tuple[str, int]:
        request = self.requests[name]
        token = self.output(name, len(request.tokens) - request.num_prompt_tokens)
        request.tokens.append(token)
        return name, token
