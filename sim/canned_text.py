"""Plausible tokens for an emulated server: canned sequences, one picked per request by a seed."""

import hashlib
from collections.abc import Sequence

from actors.core.batch import Batch
from sim.backend import Sampled


class CannedText:
    """A TokenSource that answers each request with one of `texts`, then with `eos_token_id`.

    `texts` are token sequences, made by whoever has the tokenizer. The pick hashes the seed and the
    request id, so it does not depend on what else is running. A request resumed after a preemption
    goes on where it was. Costs O(decoding requests) a step, as every token is named.
    """

    __slots__ = ("_decoding", "_eos", "_idle", "_joining", "_prefilling", "_seed", "_texts")

    def __init__(self, texts: Sequence[Sequence[int]], eos_token_id: int, seed: int = 0) -> None:
        if not texts or not all(texts):
            raise ValueError("canned text needs at least one sequence, and none of them empty")
        self._texts = tuple(tuple(text) for text in texts)
        self._eos, self._seed = eos_token_id, seed
        self._prefilling: dict[str, int] = {}
        self._decoding: dict[str, tuple[tuple[int, ...], int]] = {}
        self._joining: list[str] = []
        self._idle: frozenset[str] = frozenset()

    def text(self, request_id: str) -> tuple[int, ...]:
        """The tokens, without the end token, that a request will get."""
        digest = hashlib.blake2b(f"{self._seed}:{request_id}".encode(), digest_size=8).digest()
        return self._texts[int.from_bytes(digest, "big") % len(self._texts)]

    def begin(self, batch: Batch) -> int:
        """Fold the diff in; one step at a time, so that every token is named."""
        for request_id in (*batch.finished, *batch.preempted):
            self._decoding.pop(request_id, None)
            self._prefilling.pop(request_id, None)
        for admission in batch.admitted:
            known = admission.num_tokens - admission.num_prompt_tokens
            self._prefilling[admission.request_id] = known
        self._joining = [chunk.request_id for chunk in batch.chunks if chunk.samples]
        self._idle = frozenset(batch.idle)
        return 1

    def sample(self, num_steps: int) -> Sampled:
        """One token for each request that samples in the step."""
        for request_id in self._joining:
            place = self._prefilling.pop(request_id)
            self._decoding[request_id] = self.text(request_id), place
        tokens, ended = [], []
        for request_id, (text, place) in self._decoding.items():
            if request_id in self._idle:
                continue
            token = text[place] if place < len(text) else self._eos
            self._decoding[request_id] = text, place + 1
            tokens.append((request_id, token))
            if token == self._eos:
                ended.append(request_id)
        return Sampled(tuple(tokens), tuple(ended))
