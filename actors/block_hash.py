"""Keys of full KV blocks: vLLM's chain of hashes, under its four names.

H_i = hash((H_{i-1} or NONE_HASH, tokens of block i, extra keys or None)); the cache salt is an extra key of
the first block, the adapter one of every block. `sha256` and `xxhash` hash a pickle, the `_cbor` ones
canonical CBOR (RFC 8949, section 4.2.1), which other languages can reproduce.
"""

import hashlib
import pickle
from collections.abc import Callable

import cbor2
import xxhash

from sundog.actors.core.blocks.kv_cache import BlockHasher
from sundog.actors.core.config import ConfigError
from sundog.actors.core.params.sampling import Adapter

NONE_SEED = "vllm-none-hash"


def canonical_cbor(value: object) -> bytes:
    """Return canonical CBOR of None, integers, strings, bytes and sequences of these."""
    return cbor2.dumps(value, canonical=True)


def _pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xxh3(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


ALGORITHMS: dict[str, tuple[Callable[[bytes], bytes], Callable[[object], bytes]]] = {
    "sha256": (_sha256, _pickle),
    "sha256_cbor": (_sha256, canonical_cbor),
    "xxhash": (_xxh3, _pickle),
    "xxhash_cbor": (_xxh3, canonical_cbor),
}


def none_hash(algorithm: str, seed: str = NONE_SEED) -> bytes:
    """Return the parent key of first blocks."""
    digest, encode = _algorithm(algorithm)
    return digest(encode(seed))


def block_hasher(algorithm: str = "sha256", seed: str = NONE_SEED) -> BlockHasher:
    """Return the function that computes the key of a full block.

    Raises ConfigError for an unknown algorithm.
    """
    digest, encode = _algorithm(algorithm)
    root = none_hash(algorithm, seed)

    def hash_block(
        parent: object, tokens: tuple[int, ...], salt: str | None, adapter: Adapter | None
    ) -> bytes:
        extra: tuple[tuple[str | int, ...], ...] | None = None
        if adapter is not None:
            origin = ("lora", adapter.name, adapter.path)
            extra = ((*origin, adapter.version) if adapter.version else origin,)
        if salt is not None and parent is None:
            extra = (*(extra or ()), ("cache_salt", salt))
        return digest(encode((root if parent is None else parent, tokens, extra)))

    return hash_block


def _algorithm(name: str) -> tuple[Callable[[bytes], bytes], Callable[[object], bytes]]:
    if name not in ALGORITHMS:
        raise ConfigError(f"prefix_caching_hash_algo is {name!r}: known are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]
