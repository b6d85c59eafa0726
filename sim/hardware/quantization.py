"""Formats of a model's weights: from `quantization_config`, or by name.

Bits include the scales: a 16 bit one per `group_size` weights, and 4 bits more with zero points; one of 8
bits per 32 weights (mxfp4), per 16 (nvfp4); 32 bits per block of 128 x 128. Only formats whose kernels
multiply activations of the same kind have units: AWQ, GPTQ and mxfp4 weights are multiplied with 16-bit
activations on every GPU.

A config also names modules that stay in 16 bits, directly, as patterns, or by the targets of its groups; a
layer stores them by its parts and their projections.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sundog.actors.core.config import ConfigError
from sundog.actors.core.names import unknown
from sundog.sim.hardware.fields import Fields, config_of
from sundog.sim.hardware.formats import WeightFormat
from sundog.sim.hardware.shape import MLP_PROJECTIONS, Layer, ModelShape

LEFT = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
NEVER_QUANTISED = re.compile(
    r"lm_head|embed|router|norm|vis(ion|ual)|multi_modal|audio|mm_|\bmtp|eh_proj|conv1d|in_proj_(ba|a|b)\b|indexer|(^|\.)(\w*_)?gate([.*]|$)"
)
PARTS = {
    "attn": "attention",
    "attention": "attention",
    "shared": "dense",
    "experts": "experts",
    "moe": "experts",
    "mlp": "dense",
    "feed_forward": "dense",
}
LAYER = re.compile(r"layers?(?:\.|\\\.)(\d+)(?:\.|\\\.)?(.*)")
EITHER = re.compile(r"\(([\w|]+)\)_proj")
PROJECTION = re.compile(
    r"(?<![a-z_])(?:(fused_qkv_a|qkv|q_a|q_b|kv_a|kv_b|q|k|v|o|out|gate_up|gate|up|down)_proj|(w[123])\b)"
)
SPELT = {
    "fused_qkv_a": ("q_a", "kv_a"),
    "qkv": ("q", "k", "v"),
    "out": ("o",),
    "gate_up": ("gate", "up"),
    "w1": ("gate",),
    "w2": ("down",),
    "w3": ("up",),
}
"""Projections by module name, for fused modules and for synonyms."""
OF_MLPS = frozenset(MLP_PROJECTIONS)
WHOLE = "*"
Parts = tuple[frozenset[str], ...]
"""Parts of each layer: of `attention`, the `dense` and shared MLP, and routed `experts`."""


def left_out(
    form: WeightFormat, fields: Fields, layers: Sequence[Layer]
) -> tuple[WeightFormat, Parts, list[str]]:
    """Return the format without parts that no layer stores in it, each layer's parts in 16 bits, and remarks.

    If a name of a projection is not known, its whole part is assumed to stay in 16 bits, with a remark.
    """
    key, entries = _entries(fields)
    found: list[dict[str, set[str]]] = [defaultdict(set) for _ in layers]
    unknown: set[str] = set()
    for entry in entries:
        if NEVER_QUANTISED.search(entry):
            continue
        place = LAYER.search(entry)
        module = entry if place is None else place[2]
        index = None if place is None else int(place[1])
        if index is not None and index >= len(layers):
            continue  # a layer that predicts further tokens
        names = _projections(module)
        for own, layer in (
            zip(found, layers, strict=True) if index is None else [(found[index], layers[index])]
        ):
            for part in _parts(module, names, layer.parts):
                # An entry that names a module and none of its projections leaves all of them out.
                own[part] |= names or {WHOLE}
                unknown |= {part} if not names and _is_projection(module) else set()
    left = [
        {name for part, names in own.items() for name in _left(layer, part, names)}
        for own, layer in zip(found, layers, strict=True)
    ]
    for part in sorted(form.parts):
        # A part that every layer leaves out is no part of the format.
        have = [own for own, layer in zip(left, layers, strict=True) if part in layer.parts]
        if have and all(part in own for own in have):
            form = form.without(part)
    kept = tuple(frozenset(name for name in own if name.partition(".")[0] in form.parts) for own in left)
    whole = ", ".join(sorted(unknown))
    remark = f"{key} in quantization_config names some projections of {whole}: all of it is priced in 16 bits"
    return form, kept, [remark] if unknown else []


def _left(layer: Layer, part: str, names: set[str]) -> set[str]:
    own = set(layer.attention.projections(1) if part == "attention" else MLP_PROJECTIONS)
    if WHOLE in names or own <= names:
        return {part}
    return {f"{part}.{name}" for name in own & names}


def _projections(module: str) -> set[str]:
    spelt = EITHER.sub(lambda match: " ".join(f"{each}_proj" for each in match[1].split("|")), module)
    named = [first or second for first, second in PROJECTION.findall(spelt)]
    return {name for each in named for name in SPELT.get(each, (each,))}


def _entries(fields: Fields) -> tuple[str, list[str]]:
    """Return the list of excluded modules and its key, including rules of GPTQModel that begin with `-:`."""
    key = next((key for key in LEFT if fields.get(key) is not None), "")
    entries = fields.get(key) if key else []
    if not isinstance(entries, list):
        raise ConfigError(f"{fields.source}: {key} in quantization_config must be a list")
    dynamic = fields.get("dynamic")
    if isinstance(dynamic, dict):
        other = next((rule for rule in dynamic if not str(rule).startswith("-:")), None)
        if other is not None:
            raise ConfigError(
                f"{fields.source}: quantization_config has a dynamic rule {other!r}: formats that differ from"
                " layer to layer are not known"
            )
        key, entries = key or "dynamic", [*entries, *(str(rule)[2:] for rule in dynamic)]
    extra = fields.get("extra_config")
    if isinstance(extra, dict):
        other = next((name for name, rule in extra.items() if not _is_left(rule)), None)
        if other is not None:
            raise ConfigError(
                f"{fields.source}: extra_config in quantization_config has {other!r:.60}: formats that differ"
                " from layer to layer are not known"
            )
        key, entries = key or "extra_config", [*entries, *extra]
    return key, [str(entry) for entry in entries]


def _is_left(rule: object) -> bool:
    bits = rule.get("bits") if isinstance(rule, dict) else None
    return isinstance(bits, int) and bits >= 16


def _parts(module: str, names: set[str], there: frozenset[str]) -> set[str]:
    """Return the parts that a module belongs to; the name of a whole layer means all of them."""
    if not module.strip(".*"):
        return set(there)
    part = next((part for word, part in PARTS.items() if word in module), None)
    if part is None and names:
        return {"dense", "experts"} & there if names <= OF_MLPS else {"attention"} & there
    whole_mlp = part == "dense" and "shared" not in module and not _is_projection(module)
    return {*({part} if part else ()), *(("experts",) if whole_mlp else ())} & there


def _is_projection(module: str) -> bool:
    return bool(re.search(r"_proj|\bw[123]\b|\bqkv|with_mqa", module))


NAMES = ("gate_proj", "up_proj", "down_proj")
MIXTRAL = ("w1", "w2", "w3")
PROJECTIONS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "attention": (("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),),
    "dense": (("mlp", NAMES), ("mlp.shared_expert", NAMES), ("mlp.shared_experts", NAMES)),
    "experts": (("mlp.experts.0", NAMES), ("block_sparse_moe.experts.0", MIXTRAL)),
}
"""Names that families give the modules of a part."""


def targeted(form: WeightFormat, fields: Fields, layers: Parts) -> WeightFormat:
    """Return the format without the parts that no target names; ConfigError for unknown targets."""
    groups = fields.get("config_groups")
    assert isinstance(groups, dict), "its format was found"
    targets = [str(each) for group in groups.values() for each in group.get("targets") or ()]
    if not targets or "Linear" in targets:
        return form
    met: set[str] = set()
    for part in sorted(frozenset[str]().union(*layers)):
        ways = [_found(where, names, targets, met) for where, names in PROJECTIONS[part]]
        if any(all(way) for way in ways):
            continue
        if any(any(way) for way in ways):
            raise ConfigError(
                f"{fields.source}: quantization_config targets some projections of {part}"
                f" ({', '.join(targets):.80}): formats that differ between projections are not known"
            )
        form = form.without(part)
    other = next((target for target in targets if target not in met), None)
    if other is not None:
        raise ConfigError(
            f"{fields.source}: quantization_config targets {other!r:.80}, which names no projection that is"
            " known: give Linear, or patterns of module names behind re:"
        )
    return form


def _found(where: str, names: tuple[str, ...], targets: list[str], met: set[str]) -> list[bool]:
    found = []
    for name in names:
        own = [target for target in targets if any(_names(target, each) for each in _spelt(where, name))]
        met.update(own)
        found.append(bool(own))
    return found


def _spelt(where: str, name: str) -> list[str]:
    fused = re.sub(r"^[qkv]_proj$", "qkv_proj", re.sub(r"^(gate|up)_proj$", "gate_up_proj", name))
    return [f"model.layers.1.{where}.{each}" for each in {name, fused}]


def _names(target: str, module: str) -> bool:
    if not target.startswith("re:"):
        return module == target or module.endswith(f".{target}")
    try:
        return re.match(target[3:], module) is not None
    except re.error:
        return False


FP8 = WeightFormat("fp8", 8, "float8")
BLOCK_FP8 = WeightFormat("block fp8", 8 + 32 / 128**2, "float8")
INT8 = WeightFormat("int8", 8, "int8")
AWQ = WeightFormat("awq", 4 + 20 / 128, None)
GPTQ = WeightFormat("gptq", 4 + 16 / 128, None)
MXFP4 = WeightFormat("mxfp4", 4 + 8 / 32, None, frozenset(("experts",)))
NVFP4 = WeightFormat("nvfp4", 4 + 8 / 16, "float4")
FORMATS = {form.name: form for form in (FP8, INT8, AWQ, GPTQ, MXFP4, NVFP4)}
FORMATS |= {"awq_marlin": AWQ, "gptq_marlin": GPTQ, "w8a8": INT8, "modelopt": FP8, "modelopt_fp4": NVFP4}
"""The formats by vLLM's names for `--quantization`, and by their own names."""


AUTO_ROUND = ("auto-round", "auto_round", "intel/auto-round")
"""AutoRound's names for weights stored like GPTQ's."""
KV_KEYS = ("kv_cache_scheme", "kv_cache_quant_algo")


def format_named(name: str, has_experts: bool) -> WeightFormat:
    """Return the format named by `--quantization`; raises ConfigError for an unknown one."""
    form = FORMATS.get(name.lower())
    if form is None:
        raise unknown("quantization", name, FORMATS)
    if form is MXFP4 and not has_experts:
        raise ConfigError("quantization is mxfp4, a format of experts, and the model has none: leave it out")
    return form


def quantised(model: ModelShape, name: str) -> ModelShape:
    """Return the model with `--quantization` applied; raises ConfigError if its checkpoint is quantised
    otherwise.
    """
    form, own = format_named(name, model.has_experts), model.weights
    if own is None:
        return replace(model, weights=form)
    if own.name.split()[-1] != form.name:
        raise ConfigError(
            f"quantization is {name}, but the weights of {model.name} are {own.name} already: leave it out"
        )
    return model


def modelopt_of(text: str, source: str) -> dict[str, Any]:
    """Return the `quantization_config` equivalent to an hf_quant_config.json (TensorRT Model Optimizer)."""
    source = source.removesuffix("config.json") + "hf_quant_config.json"
    inner = config_of(text, source).get("quantization")
    if not isinstance(inner, dict):
        raise ConfigError(f"{source}: quantization (the format of the weights) is missing")
    return {"quant_method": "modelopt", **inner}


def format_in(fields: Fields, layers: Sequence[Layer]) -> tuple[WeightFormat | None, Parts, list[str]]:
    """Return the format of a config's `quantization_config`, each layer's parts in 16 bits, and remarks."""
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
    key = next((key for key in KV_KEYS if inner.get(key) is not None), None)
    if key is not None:
        remarks.append(f"{key} is left out: give --kv-cache-dtype fp8 if the server has it")
    return form, unquantised, remarks


def _stored(fields: Fields) -> WeightFormat:
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


def _fp8(fields: Fields) -> WeightFormat:
    """Return fp8, with a scale of 32 bits per block if there are blocks."""
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


def _bitsandbytes(fields: Fields) -> WeightFormat:
    """Return 4 bits with a scale per 64 weights: 32 bits, or 8 if scales are quantised too."""
    if not fields.flag("load_in_4bit"):
        raise _not_known(fields, "bitsandbytes without load_in_4bit")
    double = fields.flag("bnb_4bit_use_double_quant")
    return WeightFormat("bitsandbytes", 4 + (8 / 64 + 32 / (64 * 256) if double else 32 / 64), None)


def _grouped(fields: Fields, usual: WeightFormat) -> WeightFormat:
    """Return integers of 4 or 8 bits with a scale per group."""
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


def _compressed(fields: Fields) -> WeightFormat:
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


def _of_group(fields: Fields, group: object) -> WeightFormat:
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
        form = NVFP4 if weights.get("group_size") == 16 else WeightFormat("mxfp4", MXFP4.bits, None)
    elif (kind, bits) == ("int", 4) and plain:
        size = Fields(weights, fields.source).count("group_size", 128)
        form = WeightFormat("int4", 4 + 16 / size, None)
    else:
        raise _not_known(fields, f"compressed-tensors of {bits!r} bits of type {kind!r}")
    return replace(form, units=None) if plain else form


def _not_known(fields: Fields, what: str) -> ConfigError:
    return ConfigError(
        f"{fields.source}: quantization_config has {what}, which the cost model lacks; it has fp8,"
        " int8, awq, gptq, mxfp4, nvfp4 and bitsandbytes of 4 bits"
    )
