"""The backend's record of its requests, built from batches: numbers on the host, nothing on the device.

`Requests` has one row per request in numpy columns, so that a step in which only lengths change costs a few
array operations, however many requests run. `Prompts` stores the tokens of requests that still prefill; once
a request decodes, its row has its last token. `AdapterColumn` stores the LoRA adapter of each row.

Shapes: T tokens of the step; R sampling rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sundog.actors.core.batch import Admission, Batch, Chunk
from sundog.actors.core.params.sampling import Adapter
from sundog.runtime.sampling.choices import Choices
from sundog.runtime.sampling.rows import SamplingRows
from sundog.runtime.sampling.sampler import Sampled
from sundog.runtime.step.drafts import Drafts, accepted_rows
from sundog.runtime.step.scoring import Scored
from sundog.runtime.step.step import Ints, Part, Step, StepRows, Tables, assemble, decodes
from sundog.runtime.structured.grammars import Grammars

NO_ADAPTER = "its adapter is not loaded any more: it was unloaded, or could not be read again"


class AdapterColumn:
    """Adapter numbers of the requests, by row; `numbers` are those loaded now (`Adapters.numbers`)."""

    def __init__(self, numbers: Mapping[tuple[str, int], int]) -> None:
        self._numbers = numbers
        self._number = np.zeros(64, np.int64)

    def note(self, row: int, adapter: Adapter | None) -> bool:
        """Set the adapter of the request that is now in `row`; return False if it is not loaded."""
        if row >= len(self._number):
            self._number = np.resize(self._number, 2 * row)
        number = 0 if adapter is None else self._numbers.get((adapter.name, adapter.version))
        self._number[row] = number or 0
        return number is not None

    def used(self, rows: Iterable[int]) -> set[int]:
        """Return the numbers of the adapters in these rows."""
        return set(self._number[list(rows)].tolist())

    def of_tokens(self, parts: Sequence[Part]) -> Ints | None:
        """Return the number of each token's adapter [T]; None on a server without adapters."""
        if not (self._numbers and parts):
            return None
        return np.concatenate([np.repeat(self._number[part.row_N], part.num_queries) for part in parts])


class Prompts:
    """Known tokens of each request, from its admission until it decodes."""

    def __init__(self) -> None:
        self._known: dict[str, Ints] = {}
        self._num_top: dict[str, int] = {}
        """Number of top log probabilities requested for each prompt token, if any."""

    @property
    def has_scored(self) -> bool:
        """Whether a request needs log probabilities of its prompt."""
        return bool(self._num_top)

    def admit(self, admission: Admission) -> None:
        """Store the tokens of an admitted request.

        Raises:
            ValueError: The request comes without its tokens.
        """
        request_id = admission.request_id
        if admission.token_ids is None or len(admission.token_ids) != admission.num_tokens:
            raise ValueError(f"request {request_id} comes without its {admission.num_tokens} tokens")
        self._known[request_id] = np.array(admission.token_ids, np.int64)
        wanted = admission.sampling.prompt_logprobs
        if wanted is not None and admission.num_tokens == admission.num_prompt_tokens:
            self._num_top[request_id] = wanted  # with its first token it has had them all

    def caught_up(self, request_id: str) -> None:
        """Drop the tokens of a request that decodes from now on."""
        del self._known[request_id]

    def forget(self, request_id: str) -> None:
        self._known.pop(request_id, None)
        self._num_top.pop(request_id, None)

    def tokens(self, chunk: Chunk, first: int) -> Ints:
        """Return the tokens of a chunk that begins with the request's token `first`."""
        known = self._known[chunk.request_id]
        end = first + chunk.num_tokens
        if end > len(known) or chunk.samples != (end == len(known)):
            raise ValueError(
                f"request {chunk.request_id}: {chunk} from token {first} does not fit its {len(known)} tokens"
            )
        return known[first:end]

    def scored(self, chunk: Chunk, first: int, row: int) -> Scored | None:
        """Return the prompt tokens that a chunk predicts, from token `first` in row `row` of the step on.

        Each token predicts the next one; the last token of the prompt predicts an output.
        """
        num_top = self._num_top.get(chunk.request_id)
        if num_top is None:
            return None
        tokens = self._known[chunk.request_id][first + 1 : first + 1 + chunk.num_tokens]
        return Scored(
            chunk.request_id, row, position=first + 1, token_ids=tuple(tokens.tolist()), num_top=num_top
        )


class Requests:
    """All admitted requests, by the rules of `sundog.actors.core.batch`.

    `fold` applies a batch and returns what to compute; `advance` records what was sampled. A batch that
    breaks the rules raises ValueError with the request's id. `drafts` are kept if there is speculative
    decoding.
    """

    def __init__(
        self,
        block_size: int,
        max_model_len: int,
        seed: int,
        eos_token_ids: tuple[int, ...],
        drafts: Drafts | None = None,
        grammars: Grammars | None = None,
        adapters: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        num_rows = 64
        self._adapters = AdapterColumn({} if adapters is None else adapters)
        self.lacking: set[str] = set()
        """Requests whose adapters are not loaded: their tokens do not count."""
        self._block_size = block_size
        self._sampling = SamplingRows(seed, eos_token_ids, num_rows, grammars)
        self._drafts = drafts
        self._row: dict[str, int] = {}
        self._free = list(range(num_rows - 1, -1, -1))
        self._prompts = Prompts()
        self._decoding: dict[str, int] = {}
        self._table = np.zeros((num_rows, -(-max_model_len // block_size) + 1), np.int64)
        self._num_blocks = np.zeros(num_rows, np.int64)
        self._num_computed = np.zeros(num_rows, np.int64)
        self._admission = np.zeros(num_rows, np.int64)
        """Number of earlier requests in the same row."""
        self._last_token = np.zeros(num_rows, np.int64)
        self._decode_rows: Ints | None = None
        self._tainted: set[int] = set()
        """Blocks of failed requests, which may contain NaN."""
        self._wiped: set[int] = set()

    def __len__(self) -> int:
        return len(self._row)

    def fold(self, batch: Batch) -> Step:
        """Apply the batch; tokens of decoding requests come first, then those of chunks."""
        for request_id in batch.finished:
            if request_id in self._row:  # otherwise it ended while it waited
                self._forget(request_id)
        for request_id in batch.preempted:
            self._forget(request_id)
        for admission in batch.admitted:
            self._admit(admission)
        for request_id, block_ids in batch.new_blocks:
            self._append_blocks(self._row[request_id], block_ids)
        decode_ids, decode_rows = self._decodes(batch)
        if len(decode_ids) != batch.num_decodes:
            raise ValueError(
                f"step {batch.step}: the batch says {batch.num_decodes} decodes,"
                f" but {len(decode_ids)} requests are decoding"
            )
        step = self._step(decode_ids, decode_rows, batch)
        self._num_computed[decode_rows] += 1
        for request_id, num_drafts in batch.drafts:
            self._num_computed[self._row[request_id]] += num_drafts
        for chunk in batch.chunks:
            self._num_computed[self._row[chunk.request_id]] += chunk.num_tokens
            if chunk.samples:
                self._decoding[chunk.request_id] = self._row[chunk.request_id]
                self._decode_rows = None
                self._prompts.caught_up(chunk.request_id)
        return step

    def advance(self, step: Step, sampled: Sampled) -> list[int]:
        """Append the sampled tokens to their requests; return the rows whose tokens count.

        Rows behind a rejected draft do not count. Tokens of requests that have left are dropped. A failed
        request continues with token 0 until a batch lists it in `finished`.
        """
        names = step.request_ids
        kept = accepted_rows(step, sampled) if self._drafts is not None else list(range(len(names)))
        is_here_R = self._admission[step.row_R] == step.admission_R
        here = [at for at in kept if is_here_R[at]]
        rows = step.row_R[here].tolist()
        tokens = [sampled.tokens[at] for at in here]
        self._last_token[rows] = tokens
        self._sampling.advance(rows, tokens)
        for at in here:
            if at in sampled.failed:
                row = int(step.row_R[at])
                self._tainted.update(self._table[row, : self._num_blocks[row]].tolist())
        if self._drafts is not None:
            if len(kept) < len(names):
                np.subtract.at(self._num_computed, step.row_R, 1)
                np.add.at(self._num_computed, rows, 1)
            self._drafts.extend([names[at] for at in here], tokens)
        return kept

    @property
    def looks_back(self) -> bool:
        """Whether some request's sampling depends on its earlier tokens (penalties and similar rules)."""
        return self._drafts is not None or self._sampling.looks_back

    def tables(self) -> Tables:
        """Return the current block tables."""
        return Tables(self._table, self._num_blocks, self._block_size)

    def choices(self, rows: StepRows) -> Choices | None:
        """Return how tokens are chosen in these rows."""
        return self._sampling.take(rows.row_R, rows.position_R)

    def adapters_in_use(self) -> set[int]:
        """Return the numbers of the adapters of all requests."""
        return self._adapters.used(self._row.values())

    def row(self, request_id: str) -> int:
        """Return the request's row in the tables."""
        return self._row[request_id]

    def num_computed(self, request_id: str) -> int:
        """Return the number of the request's computed and accepted tokens."""
        return int(self._num_computed[self._row[request_id]])

    def _forget(self, request_id: str) -> None:
        row = self._row.pop(request_id, None)
        if row is None:
            raise ValueError(f"request {request_id} is preempted, but does not run")
        self._free.append(row)
        self.lacking.discard(request_id)
        self._admission[row] += 1
        self._sampling.forget(row)
        self._prompts.forget(request_id)
        if self._drafts is not None:
            self._drafts.forget(request_id)
        if self._decoding.pop(request_id, None) is not None:
            self._decode_rows = None

    def _admit(self, admission: Admission) -> None:
        request_id = admission.request_id
        if request_id in self._row:
            raise ValueError(f"request {request_id} is admitted twice")
        self._prompts.admit(admission)
        assert admission.token_ids is not None
        if not self._free:
            self._grow()
        self._row[request_id] = row = self._free.pop()
        sampling, num_prompt = admission.sampling, admission.num_prompt_tokens
        self._num_computed[row] = admission.num_computed_tokens
        # Shorter tables are padded with block 0, not with what an earlier request left behind.
        self._num_blocks[row] = self._table[row] = 0
        num_hit = -(-admission.num_computed_tokens // self._block_size)  # the last one may have been fetched
        self._append_blocks(row, admission.block_ids[:num_hit], reused=True)
        self._append_blocks(row, admission.block_ids[num_hit:])
        if not self._adapters.note(row, admission.adapter):
            self.lacking.add(request_id)
        self._sampling.set(row, request_id, num_prompt, sampling, admission.token_ids)
        if self._drafts is not None:
            self._drafts.admit(request_id, admission.token_ids, sampling)

    def _append_blocks(self, row: int, block_ids: tuple[int, ...], *, reused: bool = False) -> None:
        if self._tainted and not reused:
            self._wiped |= self._tainted.intersection(block_ids)
            self._tainted -= self._wiped
        have = int(self._num_blocks[row])
        self._table[row, have : have + len(block_ids)] = block_ids
        self._num_blocks[row] = have + len(block_ids)

    def _grow(self) -> None:
        old, new = len(self._table), 2 * len(self._table)
        self._table = np.resize(self._table, (new, self._table.shape[1]))
        for name in ("_num_blocks", "_num_computed", "_last_token", "_admission"):
            setattr(self, name, np.resize(getattr(self, name), new))
        self._sampling.grow(new)
        self._free.extend(range(new - 1, old - 1, -1))

    def _decodes(self, batch: Batch) -> tuple[tuple[str, ...], Ints]:
        if batch.idle:
            idle = set(batch.idle)
            rows = {name: row for name, row in self._decoding.items() if name not in idle}
            return tuple(rows), np.fromiter(rows.values(), np.int64, len(rows))
        if self._decode_rows is None:
            self._decode_rows = np.fromiter(self._decoding.values(), np.int64, len(self._decoding))
        return tuple(self._decoding), self._decode_rows

    def _step(self, decode_ids: tuple[str, ...], decode_rows: Ints, batch: Batch) -> Step:
        decodes = list(self._decode_parts(decode_ids, decode_rows, batch))
        parts = [*decodes, *map(self._chunk_part, batch.chunks)]
        try:
            step, rows = assemble(parts, self.tables())
        except IndexError as late:
            names = sorted(name for name, row in self._row.items() if row in late.args[0])
            raise ValueError(f"requests {names} have no block for their next tokens") from None
        wiped, self._wiped = self._wiped, set()
        return replace(
            step,
            choices=self.choices(rows),
            wiped_B=np.array(sorted(wiped), np.int64),
            adapter_T=self._adapters.of_tokens(parts),
            scored=self._to_score(batch.chunks, len(step.token_T)) if self._prompts.has_scored else (),
            row_R=rows.row_R,
            admission_R=self._admission[rows.row_R],
            # A draft is accepted or replaced on the host, which knows the last token then.
            fed_F=np.concatenate([_NO_ROWS, *(part.row_N for part in decodes if self._drafts is None)]),
        )

    def _decode_parts(self, ids: tuple[str, ...], rows: Ints, batch: Batch) -> Iterator[Part]:
        """Yield the parts of requests without drafts, then of requests whose drafts are verified."""
        verified = dict(batch.drafts)
        if self._drafts is not None:
            self._drafts.drop(name for name in ids if name not in verified)
        if verified:
            plain = [at for at, name in enumerate(ids) if name not in verified]
            ids, rows = tuple(ids[at] for at in plain), rows[plain]
        yield from decodes(ids, rows, self.tables(), self._num_computed, self._last_token)
        if self._drafts is not None:
            yield from self._drafts.parts(batch.drafts, self._row, self._num_computed)

    def _chunk_part(self, chunk: Chunk) -> Part:
        row_N = np.array([self._row[chunk.request_id]], np.int64)
        first_N = self._num_computed[row_N]
        tokens = self._prompts.tokens(chunk, int(first_N[0]))
        return Part(
            (chunk.request_id,),
            row_N,
            first_N=first_N,
            num_queries=chunk.num_tokens,
            token_T=tokens,
            num_samples=int(chunk.samples),
        )

    def _to_score(self, chunks: tuple[Chunk, ...], num_rows: int) -> tuple[Scored, ...]:
        found, row = [], num_rows - sum(chunk.num_tokens for chunk in chunks)
        for chunk in chunks:
            found.append(self._prompts.scored(chunk, self.num_computed(chunk.request_id), row))
            row += chunk.num_tokens
        return tuple(each for each in found if each is not None)


_NO_ROWS: Ints = np.empty(0, np.int64)
