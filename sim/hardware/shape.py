"""A decoder-only model as a list of layers, an embedding table and an output head."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from actors.core.records import dataclass
from sim.hardware.formats import DTYPE_BYTES, Format
from sim.hardware.layers import Heads, Layer


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that decide cost: equal layers are counted together in `layers`.

    `dtype` is of weights, activations and cache where `weights`, the format of quantised ones, does
    not say otherwise. `remarks` say what the config.json holds that is not priced. `order` names the layers
    from the first to the last by their places in `layers`; empty where each kind comes after the one before.
    A stage of a pipeline has the embedding table, the output head, both or neither.
    """

    name: str
    layers: tuple[tuple[Layer, int], ...]
    hidden_size: int
    vocab_size: int
    max_positions: int
    tied_embeddings: bool
    dtype: str
    weights: Format | None = None
    remarks: tuple[str, ...] = ()
    order: tuple[int, ...] = ()
    has_embedding: bool = True
    has_head: bool = True

    @property
    def num_layers(self) -> int:
        """All layers."""
        return sum(count for _, count in self.layers)

    @property
    def embedding_params(self) -> int:
        """Weights of one embedding table, and of the output head of the same shape."""
        return self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        """All parameters."""
        hidden = self.hidden_size
        return self._outer_params + sum(
            count * layer.num_weights(hidden, layer.mlp.num_experts) for layer, count in self.layers
        )

    @property
    def num_active_params(self) -> int:
        """Parameters one token meets: every layer, but only the experts it is sent to."""
        hidden = self.hidden_size
        return self._outer_params + sum(
            count * layer.num_weights(hidden, layer.mlp.per_token) for layer, count in self.layers
        )

    @property
    def _outer_params(self) -> int:
        tables = self.has_embedding + self.has_head
        if self.tied_embeddings:
            tables = min(tables, 1)
        return tables * self.embedding_params + self.has_head * self.hidden_size

    @property
    def layers_in_order(self) -> list[Layer]:
        """Each layer, from the first to the last."""
        if self.order:
            return [self.layers[place][0] for place in self.order]
        return [layer for layer, count in self.layers for _ in range(count)]

    @property
    def has_experts(self) -> bool:
        """Whether any layer routes."""
        return any(layer.mlp.num_experts > 1 for layer, _ in self.layers)

    @property
    def has_windows(self) -> bool:
        """Whether any layer sees only a window of the context."""
        return any(layer.attention.window is not None for layer, _ in self.layers)

    @property
    def only_layer(self) -> Layer | None:
        """The layer, where all are alike."""
        return self.layers[0][0] if len(self.layers) == 1 else None

    def weight_bytes(self, dtype: str | None = None, ranks: int = 1, groups: int = 1) -> int:
        """Bytes of the weights on each of the tensor-parallel ranks, which share them evenly.

        Experts are shared by `groups` of such ranks.
        """
        stored = self._stored(DTYPE_BYTES[dtype or self.dtype], ranks, groups)
        return ceil(sum(num * size for num, size in stored) / ranks)

    def _stored(self, plain: float, ranks: int, groups: int) -> Iterator[tuple[int, float]]:
        """Weights of all ranks of a group together and the bytes of each."""
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

    def format_of(self, layer: Layer, part: str) -> Format | None:
        """The format of a layer's `attention`, `dense` or `experts`; None where it is the model's dtype."""
        form = self.weights
        return form if form is not None and part in form.parts and self.share_of(layer, part) else None

    def share_of(self, layer: Layer, part: str) -> float:
        """The share of a part's weights that are in that format."""
        return layer.quantised_share(self.hidden_size, part)

    def bytes_per_weight(self, layer: Layer, part: str, plain: float) -> float:
        """Mean bytes of a weight of that part of a layer, `plain` where it is not quantised."""
        form = self.format_of(layer, part)
        if form is None:
            return plain
        share = self.share_of(layer, part)
        return share * form.bits / 8 + (1 - share) * plain

    def kv_bytes_per_token(self, kv_dtype: str | None = None, ranks: int = 1) -> int:
        """Bytes that a rank keeps of one token in all layers."""
        values = sum(count * layer.attention.kv_values(ranks) for layer, count in self.layers)
        return values * DTYPE_BYTES[kv_dtype or self.dtype]

    def stored_as(self, weights: Format | None) -> "ModelShape":
        """The same model with weights of another format."""
        return replace(self, weights=weights)

    @property
    def num_heads(self) -> int:
        """Attention heads, of all layers alike."""
        return self.layers[0][0].attention.num_heads

    @property
    def num_kv_heads(self) -> int | None:
        """The fewest key heads of a layer; None where all ranks keep the same latent."""
        heads = [layer.attention for layer, _ in self.layers]
        return min((h.num_kv_heads for h in heads if isinstance(h, Heads)), default=None)
