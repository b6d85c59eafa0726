"""Recorded pass of the library's own layers over a few tokens, as the reference for our decoder.

Shapes: T tokens of the pass; H query heads, K key/value heads; D key width, E value width; W hidden width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from sundog.runtime.attention import Special
from sundog.runtime.attention.groups import Group
from sundog.runtime.attention.paged_cache import PagedKVCache
from sundog.runtime.attention.step import PagedStep
from sundog.runtime.native.parts import router_of
from sundog.runtime.step.step import Span

MOST_TOKENS = 12
STIRRED = {torch.float32: 1e-4, torch.bfloat16: 0.01, torch.float16: 0.00125}
NUM_STIRRED = 16
"""Number of perturbations of a router's input, as large as rounding errors."""


@dataclass(frozen=True, slots=True)
class Attended:
    """Inputs of one layer's attention."""

    k_TKD: Tensor
    v_TKE: Tensor
    num_heads: int
    special: Special


@dataclass(slots=True)
class Pass:
    """Tokens in the first blocks of the cache, and the library's results for them."""

    token_T: NDArray[np.int64]
    position_T: NDArray[np.int64]
    slot_T: NDArray[np.int64]
    span: Span
    attended: dict[int, Attended] = field(default_factory=dict)
    into_TW: dict[int, Tensor] = field(default_factory=dict)
    out_of_TW: dict[int, Tensor] = field(default_factory=dict)
    routed: dict[int, tuple[nn.Module, tuple[Tensor, ...]]] = field(default_factory=dict)
    """Routers of layers with their inputs: [T, W], and a bias for some."""
    logits_TV: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def blocks_B(self) -> Tensor:
        return torch.from_numpy(self.span.table_NB[0])

    def settled_T(self, layer: int) -> Tensor:
        """Return the tokens whose choice of experts does not depend on the rounding of their router's
        input.
        """
        settled_T = torch.ones(len(self.token_T), dtype=torch.bool)
        if layer in self.routed:
            router, (into_TW, *given) = self.routed[layer]
            rng = torch.Generator().manual_seed(0)
            size = STIRRED[into_TW.dtype] * into_TW.float().square().mean(-1, keepdim=True).sqrt()
            chosen_TK = router(into_TW, *given)[2].sort().values
            for _ in range(NUM_STIRRED):
                noise_TW = size * torch.randn(into_TW.shape, generator=rng)
                again_TK = router((into_TW + noise_TW).to(into_TW.dtype), *given)[2].sort().values
                settled_T &= (again_TK == chosen_TK).all(-1)
        return settled_T


@dataclass(frozen=True, slots=True)
class _Noting:
    step: PagedStep
    attended: dict[int, Attended]

    def attend(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKE: Tensor, **special: Unpack[Special]
    ) -> Tensor:
        self.attended[layer] = Attended(k_TKD.clone(), v_TKE.clone(), q_THD.shape[1], special)
        return self.step.attend(layer, q_THD, k_TKD, v_TKE, **special)


def observe(model: PreTrainedModel, layers: nn.ModuleList, cache: PagedKVCache, max_model_len: int) -> Pass:
    """Record a pass, with each layer's input and output; its keys and values stay in the cache."""
    num_tokens = min(MOST_TOKENS, max_model_len)
    at_T = np.arange(num_tokens)
    slot_T = cache.block_size + at_T
    table_NB = np.arange(1, 1 + int(slot_T[-1]) // cache.block_size)[None]
    token_T = np.random.default_rng(0).integers(model.config.vocab_size, size=num_tokens)
    found = Pass(token_T, at_T, slot_T, Span(0, num_tokens, np.zeros(1, np.int64), table_NB))
    group = Group(
        0,
        torch.from_numpy(table_NB),
        positions_NQ=torch.from_numpy(at_T)[None],
        block_size=cache.block_size,
        fresh=True,
    )
    step = PagedStep(cache, torch.from_numpy(slot_T), [group])
    hooks = [
        layer.register_forward_hook(_note(found, number), with_kwargs=True)
        for number, layer in enumerate(layers)
    ] + [
        router.register_forward_pre_hook(_note_router(found, number))
        for number, layer in enumerate(layers)
        if (router := router_of(layer)) is not None
    ]
    try:
        with torch.inference_mode():
            output = model(
                input_ids=torch.from_numpy(token_T)[None],
                position_ids=torch.from_numpy(at_T)[None],
                use_cache=False,
                paged=_Noting(step, found.attended),
            )
    finally:
        for hook in hooks:
            hook.remove()
    found.logits_TV = output.logits[0]
    return found


def _note_router(found: Pass, number: int):  # type: ignore[no-untyped-def]  # torch's own kind of hook
    def note(router: nn.Module, args: tuple[Tensor, ...]) -> None:
        found.routed[number] = router, (args[0].flatten(0, -2).clone(), *args[1:])

    return note


def _note(found: Pass, number: int):  # type: ignore[no-untyped-def]  # torch's own kind of hook
    def note(
        _module: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], output: object
    ) -> None:
        into = args[0] if args else kwargs["hidden_states"]
        out = output[0] if isinstance(output, tuple) else output
        assert isinstance(out, Tensor)
        found.into_TW[number], found.out_of_TW[number] = into[0].clone(), out[0].clone()

    return note
