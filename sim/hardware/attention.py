"""The kinds of attention that a layer may have: by heads, in latents, linear."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of `num_heads` queries over `num_kv_heads` keys and values of `head_dim` each.

    With a `window` a query sees that many keys, its own included; where the window `is_chunked`, those from
    the last whole multiple of it on. `has_norms` says that queries and keys are normalised. Sinks are one
    weight a head, and cost nothing that could be measured. Where `has_gate`, queries come with as many
    numbers that what they read is multiplied with. `norms_all` says that norms are over all heads together,
    so that ranks need each other's sums.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    has_norms: bool = False
    is_chunked: bool = False
    has_gate: bool = False
    norms_all: bool = False

    def num_weights(self, hidden: int) -> int:
        """Return the weights of the query, key, value and output projections."""
        return sum(self.projections(hidden).values())

    def projections(self, hidden: int) -> dict[str, int]:
        """Weights by the name of the projection."""
        query, key = hidden * self.num_heads * self.head_dim, hidden * self.num_kv_heads * self.head_dim
        return {"q": query * (1 + self.has_gate), "k": key, "v": key, "o": query}

    def replicated_weights(self, hidden: int, ranks: int) -> int:
        """Return the weights of all ranks beyond one copy: keys and values of heads that are too few."""
        heads = max(ranks, self.num_kv_heads) - self.num_kv_heads
        return 2 * hidden * heads * self.head_dim

    def kv_values(self, ranks: int = 1) -> int:
        """Numbers that a rank keeps of a token."""
        return 2 * -(-self.num_kv_heads // ranks) * self.head_dim


@dataclass(frozen=True, slots=True)
class Indexer:
    """Heads of their own that choose the `top` keys a query reads (DeepSeek-V3.2, section 2.1).

    They look at all keys, `head_dim` numbers in 8 bits and a scale of each; every rank does that whole.
    """

    num_heads: int
    head_dim: int
    top: int

    @property
    def num_small(self) -> int:
        """The weights of the norm of keys."""
        return 2 * self.head_dim

    @property
    def kept_values(self) -> int:
        """Return how much is kept of a token, in numbers of 16 bits."""
        return (self.head_dim + 4) // 2


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): keys and values in one vector.

    A token keeps `kv_rank` latent numbers and `rope_dim` of a key that all heads share; every rank
    keeps them whole. `query_rank` None projects queries directly. With an `indexer` a query reads the keys
    that it chose, in prompts too.
    """

    num_heads: int
    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    window: int | None = None
    is_chunked: bool = False
    indexer: Indexer | None = None

    def num_weights(self, hidden: int) -> int:
        """Return the weights of the projections down to the latents, up from them, and of the output."""
        return sum(self.projections(hidden).values()) + self._index_weights(hidden)

    def projections(self, hidden: int) -> dict[str, int]:
        """Weights by the name of the projection."""
        query = self.num_heads * (self.nope_dim + self.rope_dim) * (self.query_rank or hidden)
        queries = {"q_a": hidden * self.query_rank, "q_b": query} if self.query_rank else {"q": query}
        down = hidden * (self.kv_rank + self.rope_dim)
        return {**queries, "kv_a": down, "kv_b": self.up_weights, "o": self._output_weights(hidden)}

    @property
    def up_weights(self) -> int:
        """The number of weights from a latent to the keys and values of all heads."""
        return self.kv_rank * self.num_heads * (self.nope_dim + self.value_dim)

    def replicated_weights(self, hidden: int, ranks: int) -> int:
        """Return the weights of all ranks beyond one copy: down to the latents, and of the indexer."""
        return (ranks - 1) * (self._down_weights(hidden) + self._index_weights(hidden))

    def kv_values(self, ranks: int = 1) -> int:
        """Numbers that a rank keeps of a token."""
        return self.kv_rank + self.rope_dim + (self.indexer.kept_values if self.indexer else 0)

    def _index_weights(self, hidden: int) -> int:
        if self.indexer is None:
            return 0
        heads, dim = self.indexer.num_heads, self.indexer.head_dim
        return heads * dim * (self.query_rank or hidden) + (dim + heads) * hidden

    def _down_weights(self, hidden: int) -> int:
        return hidden * (self.kv_rank + self.rope_dim + (self.query_rank or 0))

    def _output_weights(self, hidden: int) -> int:
        return self.num_heads * self.value_dim * hidden


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """Linear attention by the gated delta rule (Gated DeltaNet): a state for each request, no keys of tokens.

    Each of `num_value_heads` keeps `key_dim` x `value_dim` numbers of `state_bytes` each, or of as many as
    activations, and a convolution the last `kernel` - 1 inputs. Queries have the key heads' number and size.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int = 4
    state_bytes: int | None = None
    window: int | None = None
    is_chunked: bool = False

    @property
    def num_heads(self) -> int:
        """The heads that ranks share."""
        return self.num_key_heads

    @property
    def widths(self) -> tuple[int, int]:
        """Numbers of all keys (as many as of queries) and of all values of a token."""
        return self.num_key_heads * self.key_dim, self.num_value_heads * self.value_dim

    def num_weights(self, hidden: int) -> int:
        """Return the weights of the projections, and of two numbers that a token has for each value head."""
        return sum(self.projections(hidden).values()) + 2 * self.num_value_heads * hidden

    def projections(self, hidden: int) -> dict[str, int]:
        """Weights by the name of the projection, with the gate of the output in the first."""
        keys, values = self.widths
        return {"in": hidden * (2 * keys + 2 * values), "o": values * hidden}

    @property
    def num_small(self) -> int:
        """The weights of the convolution and of the norm, and two for each value head."""
        keys, values = self.widths
        return self.kernel * (2 * keys + values) + self.value_dim + 2 * self.num_value_heads

    def replicated_weights(self, hidden: int, ranks: int) -> int:
        """Return 0, as ranks share all heads."""
        return 0

    def kv_values(self, ranks: int = 1) -> int:
        """Return 0, as nothing is kept of a token."""
        return 0

    def request_bytes(self, ranks: int, dtype_bytes: int, num_drafts: int = 0) -> int:
        """Bytes of a request's state on a rank; a convolution keeps the inputs of drafts, too."""
        keys, values = self.widths
        inputs = (self.kernel - 1 + num_drafts) * (2 * keys + values) * dtype_bytes
        return (inputs + values * self.key_dim * (self.state_bytes or dtype_bytes)) // ranks
