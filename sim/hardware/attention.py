"""Kinds of attention in a layer: by heads, latent, linear."""

from sundog.actors.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of `num_heads` queries over `num_kv_heads` keys and values of `head_dim` each.

    With a `window` a query attends to that many keys, its own included; if the window `is_chunked`, to those
    since the last multiple of it. `has_norms`: queries and keys are normalised; `norms_all`: over all heads
    together, so that ranks exchange sums. Sinks are one weight a head, without measurable cost. `has_gate`:
    the query projection also makes as many numbers that multiply the attention's result.
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
        """Return weights by the name of the projection."""
        query, key = hidden * self.num_heads * self.head_dim, hidden * self.num_kv_heads * self.head_dim
        return {"q": query * (1 + self.has_gate), "k": key, "v": key, "o": query}

    def replicated_weights(self, hidden: int, ranks: int) -> int:
        """Return the weights that ranks hold in additional copies, because there are fewer key heads than
        ranks.
        """
        heads = max(ranks, self.num_kv_heads) - self.num_kv_heads
        return 2 * hidden * heads * self.head_dim

    def kv_values(self, ranks: int = 1) -> int:
        """Return the numbers that a rank keeps per token."""
        return 2 * -(-self.num_kv_heads // ranks) * self.head_dim


@dataclass(frozen=True, slots=True)
class Indexer:
    """Separate heads that choose the `top` keys a query reads (DeepSeek-V3.2, section 2.1).

    They score all keys, `head_dim` numbers in 8 bits and a scale of each; every rank does that whole.
    """

    num_heads: int
    head_dim: int
    top: int

    @property
    def num_small(self) -> int:
        """Weights of the norm of keys."""
        return 2 * self.head_dim

    @property
    def kept_values(self) -> int:
        """Kept size per token, in numbers of 16 bits."""
        return (self.head_dim + 4) // 2


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): keys and values in one vector.

    A token keeps `kv_rank` latent numbers and `rope_dim` of a key that all heads share; every rank keeps them
    whole. `query_rank` None projects queries directly. With an `indexer` a query reads the chosen keys only,
    in prompts too.
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
        """Return weights by the name of the projection."""
        query = self.num_heads * (self.nope_dim + self.rope_dim) * (self.query_rank or hidden)
        queries = {"q_a": hidden * self.query_rank, "q_b": query} if self.query_rank else {"q": query}
        down = hidden * (self.kv_rank + self.rope_dim)
        return {**queries, "kv_a": down, "kv_b": self.up_weights, "o": self._output_weights(hidden)}

    @property
    def up_weights(self) -> int:
        """Number of weights from a latent to the keys and values of all heads."""
        return self.kv_rank * self.num_heads * (self.nope_dim + self.value_dim)

    def replicated_weights(self, hidden: int, ranks: int) -> int:
        """Return the weights that ranks hold in additional copies: projections to the latents, and the
        indexer.
        """
        return (ranks - 1) * (self._down_weights(hidden) + self._index_weights(hidden))

    def kv_values(self, ranks: int = 1) -> int:
        """Return the numbers that a rank keeps per token."""
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
    """Linear attention by the gated delta rule (Gated DeltaNet): a state per request, no keys of tokens.

    Each of `num_value_heads` keeps `key_dim` x `value_dim` numbers of `state_bytes` each, or of the
    activations' size, and a convolution the last `kernel` - 1 inputs. Queries have the key heads' number and
    size.
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
        """Number of heads that ranks share."""
        return self.num_key_heads

    @property
    def widths(self) -> tuple[int, int]:
        """Width of all keys of a token together, which is that of the queries, and of all values."""
        return self.num_key_heads * self.key_dim, self.num_value_heads * self.value_dim

    def num_weights(self, hidden: int) -> int:
        """Return the weights of the projections, and of two numbers per token and value head."""
        return sum(self.projections(hidden).values()) + 2 * self.num_value_heads * hidden

    def projections(self, hidden: int) -> dict[str, int]:
        """Return weights by the name of the projection, with the gate of the output in the first."""
        keys, values = self.widths
        return {"in": hidden * (2 * keys + 2 * values), "o": values * hidden}

    @property
    def num_small(self) -> int:
        """Weights of the convolution and of the norm, and two for each value head."""
        keys, values = self.widths
        return self.kernel * (2 * keys + values) + self.value_dim + 2 * self.num_value_heads

    def replicated_weights(self, hidden: int, ranks: int) -> int:
        """Return 0, as ranks share all heads."""
        return 0

    def kv_values(self, ranks: int = 1) -> int:
        """Return 0, as nothing is kept per token."""
        return 0

    def request_bytes(self, ranks: int, dtype_bytes: int, num_drafts: int = 0) -> int:
        """Return the bytes of a request's state on a rank; a convolution keeps the inputs of drafts, too."""
        keys, values = self.widths
        inputs = (self.kernel - 1 + num_drafts) * (2 * keys + values) * dtype_bytes
        return (inputs + values * self.key_dim * (self.state_bytes or dtype_bytes)) // ranks
