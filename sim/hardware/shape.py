"""Decoder-only model as a list of layers, an embedding table and an output head."""

from collections.abc import Iterator, Mapping
from math import ceil

from sundog.actors.config.generation import Drawing, drawing_of
from sundog.actors.core.records import dataclass
from sundog.sim.hardware.attention import GatedDelta, Heads, Latent
from sundog.sim.hardware.formats import DTYPE_BYTES, WeightFormat


@dataclass(frozen=True, slots=True)
class Mlp:
    """Gated MLP of `inner` neurons that every token uses."""

    inner: int
    num_experts: int = 1
    per_token: int = 1

    @property
    def shared(self) -> int:
        """Neurons that every token uses."""
        return self.inner

    @property
    def inner_per_token(self) -> int:
        """Neurons that a token uses."""
        return self.inner

    def dense_weights(self, hidden: int) -> int:
        """Return the weights of gate, up and down projections that every token uses."""
        return 3 * hidden * self.inner

    def expert_weights(self, hidden: int) -> int:
        """Return 0, as there is no routed expert."""
        return 0

    def router_weights(self, hidden: int) -> int:
        """Return 0, as there is no router."""
        return 0


@dataclass(frozen=True, slots=True)
class Experts:
    """`num_experts` gated MLPs of `inner` neurons, `per_token` of which each token uses.

    Every token also uses `shared` neurons of shared experts, in Qwen2-MoE through a gate. vLLM computes some
    models' router in float32 (`routes_in_float32`).
    """

    inner: int
    num_experts: int
    per_token: int
    shared: int = 0
    gates_shared: bool = False
    routes_in_float32: bool = False

    @property
    def inner_per_token(self) -> int:
        """Neurons that a token uses."""
        return self.inner * self.per_token + self.shared

    def dense_weights(self, hidden: int) -> int:
        """Return the weights of the shared experts."""
        return 3 * hidden * self.shared

    def expert_weights(self, hidden: int) -> int:
        """Return the weights of gate, up and down projections of one routed expert."""
        return 3 * hidden * self.inner

    def router_weights(self, hidden: int) -> int:
        """Return the weights of the router that chooses experts."""
        return hidden * (self.num_experts + self.gates_shared)


MLP_PROJECTIONS = {"gate": 1, "up": 1, "down": 1}
"""Projections of an MLP, which have equal size."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Decoder layer; `num_small` counts the weights of its norms and biases.

    `unquantised` are its `parts`, or their projections (`attention.q`, `dense.down`), that the model's format
    leaves in 16 bits in this layer.
    """

    attention: Heads | Latent | GatedDelta
    mlp: Mlp | Experts
    num_small: int
    unquantised: frozenset[str] = frozenset()

    @property
    def parts(self) -> frozenset[str]:
        """Parts that a format may apply to: `attention`, a `dense` or shared MLP, `experts`."""
        mlp = self.mlp
        kinds = {"attention": True, "dense": mlp.shared > 0, "experts": mlp.num_experts > 1}
        return frozenset(part for part, has in kinds.items() if has)

    def quantised_share(self, hidden: int, part: str) -> float:
        """Return the share of a part's weights in the model's format, if that applies to this part."""
        if part in self.unquantised:
            return 0.0
        if not any(name.startswith(part + ".") for name in self.unquantised):
            return 1.0
        sizes = self.attention.projections(hidden) if part == "attention" else MLP_PROJECTIONS
        left = sum(size for name, size in sizes.items() if f"{part}.{name}" in self.unquantised)
        return 1 - left / sum(sizes.values())


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes that determine cost: equal layers are counted together in `layers`.

    `dtype` is that of weights, activations and cache unless `weights`, the format of quantised ones, applies.
    `remarks` list parts of the config.json that are not priced. `order` has the layers from the first to the
    last by their places in `layers`; empty if each kind follows the previous one. `generation` holds the
    sampling settings of its generation_config.json. `writes_chat_itself` if its conversations are written by
    a library of its own (Harmony), not by a template. A stage of a pipeline has the embedding table, the
    output head, both or neither.
    """

    name: str
    layers: tuple[tuple[Layer, int], ...]
    hidden_size: int
    vocab_size: int
    max_positions: int
    tied_embeddings: bool
    dtype: str
    weights: WeightFormat | None = None
    remarks: tuple[str, ...] = ()
    order: tuple[int, ...] = ()
    generation: tuple[tuple[str, float], ...] = ()
    has_embedding: bool = True
    has_head: bool = True
    writes_chat_itself: bool = False

    def drawing(self, override: Mapping[str, float]) -> Drawing:
        """Return the sampling mode of a server started with these settings instead of the model's."""
        return drawing_of({**dict(self.generation), **override})

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return sum(count for _, count in self.layers)

    @property
    def embedding_params(self) -> int:
        """Weights of one embedding table, and of the output head of the same shape."""
        return self.vocab_size * self.hidden_size

    @property
    def _outer_params(self) -> int:
        tables = self.has_embedding + self.has_head
        if self.tied_embeddings:
            tables = min(tables, 1)
        return tables * self.embedding_params + self.has_head * self.hidden_size

    @property
    def layers_in_order(self) -> list[Layer]:
        """Layers from the first to the last."""
        if self.order:
            return [self.layers[place][0] for place in self.order]
        return [layer for layer, count in self.layers for _ in range(count)]

    @property
    def has_experts(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(layer.mlp.num_experts > 1 for layer, _ in self.layers)

    @property
    def has_windows(self) -> bool:
        """Whether any layer attends only to a window of the context."""
        return any(layer.attention.window is not None for layer, _ in self.layers)

    def weight_bytes(self, dtype: str | None = None, ranks: int = 1, groups: int = 1) -> int:
        """Return the bytes of weights on each of `ranks` tensor-parallel ranks, which share them evenly.

        With `groups` several groups of so many ranks share the experts.
        """
        stored = self._stored(DTYPE_BYTES[dtype or self.dtype], ranks, groups)
        return ceil(sum(num * size for num, size in stored) / ranks)

    def _stored(self, plain: float, ranks: int, groups: int) -> Iterator[tuple[int, float]]:
        yield self._outer_params, plain
        hidden = self.hidden_size
        for layer, count in self.layers:
            attention, mlp = layer.attention, layer.mlp
            projections = attention.num_weights(hidden) + attention.replicated_weights(hidden, ranks)
            yield count * (mlp.router_weights(hidden) + layer.num_small), plain
            yield count * projections, self.bytes_per_weight(layer, "attention", plain)
            yield count * mlp.dense_weights(hidden), self.bytes_per_weight(layer, "dense", plain)
            experts = mlp.num_experts * mlp.expert_weights(hidden)
            yield count * experts, self.bytes_per_weight(layer, "experts", plain) / groups

    def format_of(self, layer: Layer, part: str) -> WeightFormat | None:
        """Return the format of a layer's `attention`, `dense` or `experts`; None if it is the model's
        dtype.
        """
        form = self.weights
        return form if form is not None and part in form.parts and self.share_of(layer, part) else None

    def share_of(self, layer: Layer, part: str) -> float:
        """Return the share of a part's weights in that format."""
        return layer.quantised_share(self.hidden_size, part)

    def bytes_per_weight(self, layer: Layer, part: str, plain: float) -> float:
        """Return the mean bytes of a weight of that part of a layer, `plain` if it is not quantised."""
        form = self.format_of(layer, part)
        if form is None:
            return plain
        share = self.share_of(layer, part)
        return share * form.bits / 8 + (1 - share) * plain

    def kv_bytes_per_token(self, kv_dtype: str | None = None, ranks: int = 1) -> int:
        """Return the bytes that a rank keeps per token in all layers."""
        values = sum(count * layer.attention.kv_values(ranks) for layer, count in self.layers)
        return values * DTYPE_BYTES[kv_dtype or self.dtype]

    @property
    def num_heads(self) -> int:
        """Attention heads, equal in all layers; key heads in a model of linear attention alone."""
        kinds = [layer.attention for layer, _ in self.layers]
        return next((kind for kind in kinds if not isinstance(kind, GatedDelta)), kinds[0]).num_heads

    @property
    def shared_heads(self) -> tuple[int, ...]:
        """Numbers of heads that ranks must be able to split, for each kind of layer."""
        return tuple(dict.fromkeys(layer.attention.num_heads for layer, _ in self.layers))

    def request_bytes(self, ranks: int, dtype: str) -> int:
        """Return the bytes of a request's states on a rank, besides the keys and values of its tokens."""
        kinds = ((layer.attention, count) for layer, count in self.layers)
        return sum(
            count * kind.request_bytes(ranks, DTYPE_BYTES[dtype])
            for kind, count in kinds
            if isinstance(kind, GatedDelta)
        )

    @property
    def num_kv_heads(self) -> int | None:
        """Fewest key heads of a layer; None if all ranks keep the same latent."""
        heads = [layer.attention for layer, _ in self.layers]
        return min((h.num_kv_heads for h in heads if isinstance(h, Heads)), default=None)
