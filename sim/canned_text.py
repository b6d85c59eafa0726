"""Plausible tokens for an emulated server: canned sequences, one picked for each request by a seed."""

import hashlib
from collections.abc import Sequence

from sim.named_tokens import NamedTokens


def canned_text(texts: Sequence[Sequence[int]], eos_token_id: int, seed: int = 0) -> NamedTokens:
    """A TokenSource that answers each request with one of `texts`, then with `eos_token_id`.

    `texts` are token sequences, made with the server's tokenizer. The pick hashes the seed and the
    request id, so it does not depend on what else is running.
    """
    if not texts or not all(texts):
        raise ValueError("canned text needs at least one sequence, and none of them empty")
    sequences = tuple(tuple(text) for text in texts)

    def tokens_of(request_id: str) -> tuple[int, ...]:
        digest = hashlib.blake2b(f"{seed}:{request_id}".encode(), digest_size=8).digest()
        return sequences[int.from_bytes(digest, "big") % len(sequences)]

    return NamedTokens(tokens_of, eos_token_id, is_end=True)
