"""Paged attention for every decoder that transformers can build, as one registered function.

The library keeps its rotary embeddings, norms, routing and weights; only the attention of each layer is ours.
In a forward pass the tokens of all requests form one row. The keyword `paged` carries the step's own
attention, so that nothing global is set. To add a kernel, add it to `runtime/model/attention_backend.py`,
which tests each kernel once against `gathered.py`.
"""

from typing import Protocol, TypedDict, Unpack

from torch import Tensor, nn

from sundog.actors.core.config import ConfigError

NAME = "sundog_paged"


class Special(TypedDict):
    """Options of a layer's attention beyond a softmax over its scores."""

    scaling: float
    window: int | None
    softcap: float | None
    sinks_H: Tensor | None


class StepAttention(Protocol):
    """Attention of one forward pass, layer by layer."""

    def attend(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKE: Tensor, **special: Unpack[Special]
    ) -> Tensor:
        """Return the attention output [T, H, E] of one layer, after storing its keys and values."""
        ...


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: StepAttention | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_unused: object,
) -> tuple[Tensor, None]:
    """Pass one layer's query [1, H, T, D], key and value [1, K, T, D] to the step; return [1, T, H, E]."""
    if paged is None:
        raise ConfigError("its layers do not pass the step on to their attention")
    if attention_mask is not None:
        raise ConfigError("its layers mask attention by a rule of their own")
    if not getattr(module, "is_causal", True):
        raise ConfigError("its tokens attend to later ones")
    out_THE = paged.attend(
        int(module.layer_idx),  # type: ignore[arg-type]  # nn.Module types attributes as tensors
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks_H=s_aux,
    )
    return out_THE[None], None


def register() -> str:
    """Register the function with transformers; return its name for `attn_implementation`.

    No mask is registered with it, so that the library neither makes a mask nor reads the positions to make
    one, which would wait for the device in every pass.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, paged_attention)
    return NAME


__all__ = ["NAME", "Special", "StepAttention", "paged_attention", "register"]
