"""Which format a model's weights are stored in: from `quantization_config`, or by name.

Bits include the scales: a 16 bit one per `group_size` weights, and 4 bits more where zero points are
kept; one of 8 bits per 32 weights (mxfp4), per 16 (nvfp4); 32 bits per block of 128 x 128. Only
formats whose kernels multiply activations of the same kind have units: AWQ, GPTQ and mxfp4 weights
meet 16-bit activations on every GPU.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from actors.core.config import ConfigError
from actors.core.names import unknown
from sim.hardware.fields import Fields, config_of
from sim.hardware.formats import Format
from sim.hardware.layers import Layer
from sim.hardware.shape import ModelShape
from sim.hardware.targets import targeted
from sim.hardware.unquantised import Parts, left_out

FP8 = Format("fp8", 8, "float8")
BLOCK_FP8 = Format("block fp8", 8 + 32 / 128**2, "float8")
INT8 = Format("int8", 8, "int8")
AWQ = Format("awq", 4 + 20 / 128, None)
GPTQ = Format("gptq", 4 + 16 / 128, None)
MXFP4 = Format("mxfp4", 4 + 8 / 32, None, frozenset(("experts",)))
NVFP4 = Format("nvfp4", 4 + 8 / 16, "float4")
FORMATS = {form.name: form for form in (FP8, INT8, AWQ, GPTQ, MXFP4, NVFP4)}
FORMATS |= {"awq_marlin": AWQ, "gptq_marlin": GPTQ, "w8a8": INT8, "modelopt": FP8, "modelopt_fp4": NVFP4}
"""By vLLM's names for `--quantization`, and by those of the formats."""


AUTO_ROUND = ("auto-round", "auto_round", "intel/auto-round")
"""AutoRound's names for weights that are stored as GPTQ's are."""
KV_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")


def format_named(name: str, has_experts: bool) -> Format:
    """The format that `--quantization` names; raises ConfigError for one that is not known."""
    form = FORMATS.get(name.lower())
    if form is None:
        raise unknown("quantization", name, FORMATS)
    if form is MXFP4 and not has_experts:
        raise ConfigError("quantization is mxfp4, which is of experts, and the model has none: leave it out")
    return form


def quantised(model: ModelShape, name: str) -> ModelShape:
    """The model as `--quantization` would have it; raises ConfigError if its checkpoint is another."""
    form, own = format_named(name, model.has_experts), model.weights
    if own is None:
        return replace(model, weights=form)
    if own.name.split()[-1] != form.name:
        raise ConfigError(
            f"quantization is {name}, but the weights of {model.name} are {own.name} already: leave it out"
        )
    return model


def modelopt_of(text: str, source: str) -> dict[str, Any]:
    """The `quantization_config` that an hf_quant_config.json (TensorRT Model Optimizer) stands for."""
    source = source.removesuffix("config.json") + "hf_quant_config.json"
    inner = config_of(text, source).get("quantization")
    if not isinstance(inner, dict):
        raise ConfigError(f"{source}: quantization is missing: it says how weights are stored")
    return {"quant_method": "modelopt", **inner}


def format_in(fields: Fields, layers: Sequence[Layer]) -> tuple[Format | None, Parts, list[str]]:
    """The format that a config's `quantization_config` says, and what is not quite as it says.

    Between them stands what each layer has in 16 bits of the parts that other layers have in the format.
    """
    asked = fields.get("quantization_config")
    if asked is None:
        return None, (frozenset(),) * len(layers), []
    if not isinstance(asked, dict):
        raise ConfigError(f"{fields.source}: quantization_config is not an object")
    inner = Fields({key: value for key, value in asked.items() if value is not None}, fields.source)
    form = _stored(inner)
    if inner.get("quant_method") == "compressed-tensors":
        form = targeted(form, inner, tuple(layer.parts for layer in layers))
    form, unquantised, remarks = left_out(form, inner, layers)
    key = next(
        (key for key in ("kv_cache_scheme", "kv_cache_quant_algo") if inner.get(key) is not None), None
    )
    if key is not None:
        remarks.append(f"{key} is left out: give --kv-cache-dtype fp8 if the server has it")
    return form, unquantised, remarks


def _stored(fields: Fields) -> Format:
    """The format of whatever is quantised."""
    method = fields.get("quant_method") or ("modelopt" if fields.get("quant_algo") is not None else None)
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(fields)
    if method == "mxfp4":
        return MXFP4
    if method in ("awq", "gptq", *AUTO_ROUND):
        return _grouped(fields, AWQ if method == "awq" else GPTQ)
    if method == "bitsandbytes":
        return _bitsandbytes(fields)
    if method in ("modelopt", "modelopt_fp4"):
        form = {"FP8": FP8, "NVFP4": NVFP4, "FP4": NVFP4}.get(str(fields.get("quant_algo")))
        if form is not None:
            return form
        raise _not_known(fields, f"modelopt with quant_algo {fields.get('quant_algo')!r}")
    if method == "compressed-tensors":
        return _compressed(fields)
    raise _not_known(fields, f"quant_method {method!r}")


def _fp8(fields: Fields) -> Format:
    """With a scale of 32 bits per block, if there are blocks."""
    block = fields.get("weight_block_size")
    if block is None:
        return FP8
    sizes = block if isinstance(block, list) else []
    if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ConfigError(
            f"{fields.source}: weight_block_size in quantization_config is {block!r:.60}: give two numbers,"
            " as in [128, 128]"
        )
    return replace(BLOCK_FP8, bits=8 + 32 / (sizes[0] * sizes[1]))


def _bitsandbytes(fields: Fields) -> Format:
    """4 bits with a 32 bit scale per 64 weights, or one of 8 bits where scales are quantised too."""
    if not fields.flag("load_in_4bit"):
        raise _not_known(fields, "bitsandbytes without load_in_4bit")
    double = fields.flag("bnb_4bit_use_double_quant")
    return Format("bitsandbytes", 4 + (8 / 64 + 32 / (64 * 256) if double else 32 / 64), None)


def _grouped(fields: Fields, usual: Format) -> Format:
    """Whole numbers of 4 or 8 bits with a scale per group."""
    bits, kind = fields.count("bits", 4), fields.get("data_type") or "int"
    if kind not in ("int", "int_sym"):
        raise _not_known(fields, f"data_type {kind!r}")
    if bits not in (4, 8):
        raise _not_known(fields, f"{usual.name} with {bits} bits")
    group = fields.count("group_size", 128, least=-1)
    if group == 0:
        raise ConfigError(f"{fields.source}: group_size is 0: give 128, say, or -1 for one scale a column")
    scales = (20 if usual is AWQ else 16) / group if group > 0 else 0
    return replace(usual, bits=bits + scales)


def _compressed(fields: Fields) -> Format:
    """The one format of all groups of compressed-tensors."""
    groups = fields.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _not_known(fields, "compressed-tensors without config_groups")
    sparsity = fields.get("sparsity_config") or {}
    if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
        raise _not_known(fields, f"sparse weights ({sparsity['format']!r:.60})")
    forms = [_of_group(fields, group) for group in groups.values()]
    if any(form != forms[0] for form in forms):
        names = ", ".join(sorted({form.name for form in forms}))
        raise _not_known(fields, f"groups of several formats ({names}) in one model")
    return forms[0]


def _of_group(fields: Fields, group: object) -> Format:
    if not isinstance(group, dict):
        raise _not_known(fields, "compressed-tensors with a group that is no object")
    weights = group.get("weights")
    if not isinstance(weights, dict):
        raise _not_known(fields, "compressed-tensors without weights in its group")
    kind, bits, plain = weights.get("type"), weights.get("num_bits"), group.get("input_activations") is None
    if (kind, bits) == ("float", 8):
        form = BLOCK_FP8 if weights.get("strategy") == "block" else FP8
    elif (kind, bits) == ("int", 8):
        form = INT8
    elif (kind, bits) == ("float", 4):
        form = NVFP4 if weights.get("group_size") == 16 else Format("mxfp4", MXFP4.bits, None)
    elif (kind, bits) == ("int", 4) and plain:
        size = Fields(weights, fields.source).count("group_size", 128)
        form = Format("int4", 4 + 16 / size, None)
    else:
        raise _not_known(fields, f"compressed-tensors of {bits!r} bits of type {kind!r}")
    return replace(form, units=None) if plain else form


def _not_known(fields: Fields, what: str) -> ConfigError:
    return ConfigError(
        f"{fields.source}: quantization_config has {what}, which the cost model does not know: known are fp8,"
        " int8, awq, gptq, mxfp4, nvfp4 and bitsandbytes of 4 bits"
    )
