"""The backend's own record of its requests, folded from batches: numbers only, no device.

The columns below have one row per request, so that a step in which nothing changes but lengths
costs a few array operations, whatever the number of requests.

Shapes: T tokens of the step; N requests of a span, B blocks of its longest; R sampling requests.
"""

import numpy as np
from numpy.typing import NDArray

from actors.core.batch import Admission, Batch, Chunk
from runtime.sampling.rows import SamplingRows
from runtime.sampling.sampler import Sampled
from runtime.scoring import Scored
from runtime.step import Span, Step

Ints = NDArray[np.int64]

# Decoding requests whose block tables are within a power of two of each other share one padded
# table; below this many blocks the padding costs less than another call.
SMALL_TABLE_BLOCKS = 16


class Requests:
    """Every admitted request, kept by the rules of `actors.core.batch`.

    `fold` takes a batch in and says what to compute; `advance` notes what came out. A batch that breaks the
    rules raises ValueError with the request's id.
    """

    def __init__(
        self, block_size: int, max_model_len: int, seed: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        num_rows = 64
        self._block_size = block_size
        self._sampling = SamplingRows(seed, eos_token_ids, num_rows)
        self._row: dict[str, int] = {}
        self._free = list(range(num_rows - 1, -1, -1))
        self._known: dict[str, Ints] = {}
        self._scored: dict[str, int] = {}
        """How many likeliest tokens are wanted beside each of the prompt, of requests that want any."""
        self._decoding: dict[str, int] = {}
        self._table = np.zeros((num_rows, -(-max_model_len // block_size) + 1), np.int64)
        self._num_blocks = np.zeros(num_rows, np.int64)
        self._num_computed = np.zeros(num_rows, np.int64)
        self._last_token = np.zeros(num_rows, np.int64)
        self._decode_rows: Ints | None = None
        self._tainted: set[int] = set()
        """Blocks of requests that failed, which may hold NaN."""
        self._wiped: set[int] = set()

    def __len__(self) -> int:
        return len(self._row)

    def fold(self, batch: Batch) -> Step:
        """Take the batch in; the tokens of decoding requests come first, then the chunks'."""
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
        step = self._step(decode_ids, decode_rows, batch.chunks)
        self._num_computed[decode_rows] += 1
        for chunk in batch.chunks:
            self._num_computed[self._row[chunk.request_id]] += chunk.num_tokens
            if chunk.samples:
                self._decoding[chunk.request_id] = self._row[chunk.request_id]
                self._decode_rows = None
                del self._known[chunk.request_id]
        return step

    def advance(self, step: Step, sampled: Sampled) -> None:
        """Append the sampled tokens to their requests.

        A request that failed goes on with token 0 until a batch names it in `finished`.
        """
        rows = [self._row[request_id] for request_id in step.request_ids]
        self._last_token[rows] = sampled.tokens
        self._sampling.advance(rows, sampled.tokens)
        for failed in sampled.failed:
            row = rows[failed]
            self._tainted.update(self._table[row, : self._num_blocks[row]].tolist())

    def _forget(self, request_id: str) -> None:
        row = self._row.pop(request_id, None)
        if row is None:
            raise ValueError(f"request {request_id} is preempted, but does not run")
        self._free.append(row)
        self._sampling.forget(row)
        self._known.pop(request_id, None)
        self._scored.pop(request_id, None)
        if self._decoding.pop(request_id, None) is not None:
            self._decode_rows = None

    def _admit(self, admission: Admission) -> None:
        request_id = admission.request_id
        if request_id in self._row:
            raise ValueError(f"request {request_id} is admitted twice")
        if admission.token_ids is None or len(admission.token_ids) != admission.num_tokens:
            raise ValueError(f"request {request_id} comes without its {admission.num_tokens} tokens")
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._row[request_id] = row
        self._known[request_id] = np.array(admission.token_ids, np.int64)
        num_top = admission.sampling.prompt_logprobs
        if num_top is not None and admission.num_tokens == admission.num_prompt_tokens:
            self._scored[request_id] = num_top  # with its first token it has had them all
        self._num_computed[row] = admission.num_computed_tokens
        self._num_blocks[row] = 0
        # Shorter tables are padded with block 0, not with what an earlier request left behind.
        self._table[row] = 0
        num_hit = admission.num_computed_tokens // self._block_size
        self._append_blocks(row, admission.block_ids[:num_hit], reused=True)
        self._append_blocks(row, admission.block_ids[num_hit:])
        sampling, num_prompt = admission.sampling, admission.num_prompt_tokens
        self._sampling.set(row, request_id, num_prompt, sampling, admission.token_ids)

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
        for name in ("_num_blocks", "_num_computed", "_last_token"):
            setattr(self, name, np.resize(getattr(self, name), new))
        self._sampling.grow(new)
        self._free.extend(range(new - 1, old - 1, -1))

    def _decodes(self, batch: Batch) -> tuple[tuple[str, ...], Ints]:
        """The requests that decode in this step, in the order in which they began to, and their rows."""
        if batch.idle:
            idle = set(batch.idle)
            rows = {name: row for name, row in self._decoding.items() if name not in idle}
            return tuple(rows), np.fromiter(rows.values(), np.int64, len(rows))
        if self._decode_rows is None:
            self._decode_rows = np.fromiter(self._decoding.values(), np.int64, len(self._decoding))
        return tuple(self._decoding), self._decode_rows

    def _step(self, decode_ids: tuple[str, ...], decode_rows: Ints, chunks: tuple[Chunk, ...]) -> Step:
        decode_ids, decode_rows, sizes = self._by_size(decode_ids, decode_rows)
        chunk_rows = [self._row[chunk.request_id] for chunk in chunks]
        row_N = np.concatenate((decode_rows, np.array(chunk_rows, np.int64)))
        count_N = np.ones(len(row_N), np.int64)
        count_N[len(decode_rows) :] = [chunk.num_tokens for chunk in chunks]
        start_N = np.cumsum(count_N) - count_N
        first_N = self._num_computed[row_N]
        tokens = [self._last_token[decode_rows], *map(self._chunk_tokens, chunks)]
        samples = [*range(len(decode_rows))]
        samples += [len(decode_rows) + i for i, chunk in enumerate(chunks) if chunk.samples]
        sample_rows_R = (start_N + count_N - 1)[samples]
        position_T = np.repeat(first_N - start_N, count_N) + np.arange(count_N.sum())
        wiped, self._wiped = self._wiped, set()
        return Step(
            token_T=np.concatenate(tokens),
            position_T=position_T,
            slot_T=self._slots(np.repeat(row_N, count_N), position_T),
            spans=self._spans(row_N, count_N, start_N, first_N, sizes),
            request_ids=(*decode_ids, *(chunk.request_id for chunk in chunks if chunk.samples)),
            sample_rows_R=sample_rows_R,
            choices=self._sampling.take(row_N[samples], position_T[sample_rows_R] + 1),
            wiped_B=np.array(sorted(wiped), np.int64),
            scored=self._to_score(chunks, start_N[len(decode_rows) :]) if self._scored else (),
        )

    def _to_score(self, chunks: tuple[Chunk, ...], start_N: Ints) -> tuple[Scored, ...]:
        """The prompt tokens that these chunks predict: each one's next, but for the last of the prompt."""
        scored = []
        for chunk, start in zip(chunks, start_N.tolist(), strict=True):
            num_top = self._scored.get(chunk.request_id)
            if num_top is not None:
                first = int(self._num_computed[self._row[chunk.request_id]]) + 1
                tokens = self._known[chunk.request_id][first : first + chunk.num_tokens]
                scored.append(Scored(chunk.request_id, start, first, tuple(tokens.tolist()), num_top))
        return tuple(scored)

    def _chunk_tokens(self, chunk: Chunk) -> Ints:
        known = self._known[chunk.request_id]
        first = int(self._num_computed[self._row[chunk.request_id]])
        end = first + chunk.num_tokens
        if end > len(known) or chunk.samples != (end == len(known)):
            raise ValueError(
                f"request {chunk.request_id}: {chunk} from token {first} does not fit its {len(known)} tokens"
            )
        return known[first:end]

    def _slots(self, row_T: Ints, position_T: Ints) -> Ints:
        block_T, offset_T = np.divmod(position_T, self._block_size)
        if (block_T >= self._num_blocks[row_T]).any():
            late = row_T[block_T >= self._num_blocks[row_T]]
            names = sorted(name for name, row in self._row.items() if row in late)
            raise ValueError(f"requests {names} have no block for their next tokens")
        return self._table[row_T, block_T] * self._block_size + offset_T

    def _by_size(self, ids: tuple[str, ...], rows: Ints) -> tuple[tuple[str, ...], Ints, list[int]]:
        """Decoding requests with tables of similar length side by side, and how many of each length."""
        bits = np.frexp(np.maximum(self._num_blocks[rows], SMALL_TABLE_BLOCKS) - 0.5)[1]
        sizes = np.unique(bits, return_counts=True)[1].tolist()
        if len(sizes) > 1:
            order = np.argsort(bits, kind="stable")
            ids, rows = tuple(ids[i] for i in order), rows[order]
        return ids, rows, sizes

    def _spans(
        self, row_N: Ints, count_N: Ints, start_N: Ints, first_N: Ints, sizes: list[int]
    ) -> tuple[Span, ...]:
        """One span for each size of decoding requests, then one for each chunk."""
        spans, at = [], 0
        for size in (*sizes, *[1] * (len(row_N) - sum(sizes))):
            part = slice(at, at + size)
            last = int((first_N + count_N)[part].max()) - 1
            table_NB = self._table[row_N[part], : last // self._block_size + 1]
            spans.append(Span(int(start_N[at]), int(count_N[at]), first_N[part], table_NB))
            at += size
        return tuple(spans)
