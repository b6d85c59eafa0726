"""Quantised checkpoints, dequantised at load: fp8, int8, AWQ and GPTQ, as published.

The served model has these very weights in 16 or 32 bits: no kernel is needed and no memory is saved.
Activations stay in the model's own type, even where a server with fp8 units would round them.

Shapes: O outputs, I inputs, G groups of inputs; P numbers packed into one int32.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.checkpoint.weights import FLOATS, StoredTensor

_LOG = logging.getLogger(__name__)
INT32_BITS = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column, of eight, that each nibble holds (AutoAWQ, `GEMM` version)."""
Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class StorageFormat:
    """Storage format of a linear layer: the tensor that marks it, its companions, and the decoder.

    A tensor called `….` + `marks` identifies a layer; `parts` are read with it, and `left` are ignored.
    """

    marks: str
    parts: tuple[str, ...]
    read: Callable[[Mapping[str, Tensor], Settings], Tensor]
    left: tuple[str, ...] = ()


def formats(settings: Settings) -> tuple[StorageFormat, ...]:
    """Return the formats of a `quantization_config`; LoadError names an unknown one."""
    method = str(settings.get("quant_method"))
    if method == "fp8":
        return (FP8_BLOCKS, FP8_SCALED)
    if method == "compressed-tensors":
        _check_compressed(settings)
        return (FP8_SCALED,)
    if method == "awq":
        if settings.get("bits") != 4 or str(settings.get("version", "gemm")).lower() != "gemm":
            raise LoadError(
                f"awq with {_given(settings, 'bits', 'version')}: only 4 bits, version gemm, is read"
            )
        return (AWQ,)
    if method == "gptq":
        if settings.get("bits") not in (2, 4, 8):
            raise LoadError(f"gptq with {_given(settings, 'bits')}: only 2, 4 and 8 bits are read")
        if settings.get("checkpoint_format", "gptq") not in ("gptq", "gptq_v2"):
            raise LoadError(
                f"gptq with {_given(settings, 'checkpoint_format')}: only gptq and gptq_v2 are read"
            )
        return (GPTQ,)
    raise LoadError(f"its weights are quantised by {method}; fp8, compressed-tensors, awq and gptq are read")


def _given(settings: Settings, *names: str) -> str:
    return ", ".join(f"{name} {settings.get(name)!r}" for name in names)


def _check_compressed(settings: Settings) -> None:
    kind = settings.get("format")
    if kind not in ("float-quantized", "int-quantized", "naive-quantized"):
        raise LoadError(
            f"compressed-tensors with format {kind!r}: float-quantized and int-quantized are read"
        )
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and not weights.get("symmetric", True):
            raise LoadError("compressed-tensors with weights that are not symmetric are not read")


def read_dequantised(
    folder: Path, stored: Mapping[str, StoredTensor], settings: Settings, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the folder's weights in `dtype`, under the model's names.

    Works layer by layer, so that only one layer besides the result is in memory.
    """
    try:
        known = formats(settings)
    except LoadError as reason:
        raise LoadError(f"{folder} is not supported: {reason}") from None
    plain: dict[str, Tensor] = {}
    with ExitStack() as opened:
        files = {
            file: opened.enter_context(safe_open(file, "pt")) for file in {s.file for s in stored.values()}
        }

        def read(name: str) -> Tensor:
            tensor: Tensor = files[stored[name].file].get_tensor(name)
            return tensor

        used: set[str] = set()
        for layer, form in _layers(stored, known):
            names = {
                part: layer + part for part in (form.marks, *form.parts, *form.left) if layer + part in stored
            }
            used.update(names.values())
            plain[f"{layer}weight"] = _weight(
                folder, layer, form, {p: read(n) for p, n in names.items()}, settings, dtype
            )
        for name in stored.keys() - used:
            if stored[name].dtype not in FLOATS:
                raise LoadError(
                    f"{folder}: {name} is stored as {stored[name].dtype} without the scales it needs"
                )
            plain[name] = read(name).to(dtype)
    if not used:
        _LOG.warning(
            "%s: config.json says that weights are quantised by %s, and none is: they are served as stored",
            folder,
            settings.get("quant_method"),
        )
    return plain


def _layers(
    stored: Mapping[str, StoredTensor], known: Sequence[StorageFormat]
) -> Iterator[tuple[str, StorageFormat]]:
    for name in stored:
        layer, dot, last = name.rpartition(".")
        for form in known:
            if last == form.marks and all(layer + dot + part in stored for part in form.parts):
                yield layer + dot, form
                break


def _weight(
    folder: Path,
    layer: str,
    form: StorageFormat,
    parts: Mapping[str, Tensor],
    settings: Settings,
    dtype: torch.dtype,
) -> Tensor:
    try:
        return form.read(parts, settings).to(dtype)
    except (RuntimeError, ValueError, IndexError) as error:
        shapes = ", ".join(f"{part} {list(tensor.shape)}" for part, tensor in parts.items())
        method = settings["quant_method"]
        raise LoadError(f"{folder}: {layer[:-1]} is not laid out as {method} has it: {shapes}") from error


def _fp8_blocks(parts: Mapping[str, Tensor], settings: Settings) -> Tensor:
    """Dequantise DeepSeek's format: one factor per block of weights, usually of 128 x 128."""
    weight_OI, scale = parts["weight"].float(), parts["weight_scale_inv"].float()
    if scale.numel() == 1:
        return weight_OI * scale.reshape(())
    size = settings.get("weight_block_size") or (128, 128)
    assert isinstance(size, list | tuple)
    rows, columns = (int(side) for side in size)
    num_outputs, num_inputs = weight_OI.shape[-2:]
    if scale.shape[-2:] != (-(-num_outputs // rows), -(-num_inputs // columns)):
        raise ValueError("another number of blocks")
    whole = scale.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return weight_OI * whole[..., :num_outputs, :num_inputs]


def _scaled(parts: Mapping[str, Tensor], settings: Settings) -> Tensor:
    """Multiply by one scale per tensor, per output, or per group of inputs of each output."""
    weight_OI, scale = parts["weight"].float(), parts["weight_scale"].float()
    if scale.numel() == 1:
        return weight_OI * scale.reshape(())
    scale_OG = scale.reshape(weight_OI.shape[0], -1)
    if weight_OI.shape[1] % scale_OG.shape[1]:
        raise ValueError("groups of unequal size")
    return weight_OI * scale_OG.repeat_interleave(weight_OI.shape[1] // scale_OG.shape[1], 1)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Unpack [..., N] int32 to [..., N * P] numbers, the lowest bits first."""
    shifts_P = torch.arange(0, INT32_BITS, bits, dtype=torch.int32)
    numbers: Tensor = ((packed[..., None] >> shifts_P) & (2**bits - 1)).flatten(-2)
    return numbers


def _awq(parts: Mapping[str, Tensor], settings: Settings) -> Tensor:
    """Dequantise qweight [I, O/8], qzeros [G, O/8], scales [G, O]; eight columns interleaved in an int32."""
    scales_GO = parts["scales"].float()
    places = torch.tensor(AWQ_ORDER).argsort()

    def columns(packed: Tensor) -> Tensor:
        numbers = _unpacked(packed, 4)
        return numbers.view(len(numbers), -1, len(AWQ_ORDER))[..., places].flatten(-2)

    numbers_IO, zeros_GO = columns(parts["qweight"]), columns(parts["qzeros"])
    group = numbers_IO.shape[0] // scales_GO.shape[0]
    weight_IO = (numbers_IO - zeros_GO.repeat_interleave(group, 0)) * scales_GO.repeat_interleave(group, 0)
    weight_OI: Tensor = weight_IO.T.contiguous()
    return weight_OI


def _gptq(parts: Mapping[str, Tensor], settings: Settings) -> Tensor:
    """Dequantise qweight [I/P, O], qzeros [G, O/P] (less one in the first version), scales [G, O], g_idx
    [I].
    """
    bits = settings["bits"]
    assert isinstance(bits, int)
    scales_GO = parts["scales"].float()
    numbers_IO = _unpacked(parts["qweight"].T.contiguous(), bits).T
    offset = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
    zeros_GO = (_unpacked(parts["qzeros"], bits) + offset) & (2**bits - 1)
    num_inputs = numbers_IO.shape[0]
    group_I = parts.get("g_idx")
    if group_I is None:
        group_I = torch.arange(num_inputs) // -(-num_inputs // scales_GO.shape[0])
    weight_IO = (numbers_IO - zeros_GO[group_I.long()]) * scales_GO[group_I.long()]
    weight_OI: Tensor = weight_IO.T.contiguous()
    return weight_OI


FP8_BLOCKS = StorageFormat("weight", ("weight_scale_inv",), _fp8_blocks, ("input_scale", "activation_scale"))
FP8_SCALED = StorageFormat("weight", ("weight_scale",), _scaled, ("input_scale", "weight_zero_point"))
AWQ = StorageFormat("qweight", ("qzeros", "scales"), _awq)
GPTQ = StorageFormat("qweight", ("qzeros", "scales"), _gptq, ("g_idx",))
