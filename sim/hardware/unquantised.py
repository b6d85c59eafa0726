"""What a `quantization_config` leaves in 16 bits: whole parts of all layers, or modules of single ones."""

import re
from collections import defaultdict
from collections.abc import Sequence

from actors.core.config import ConfigError
from sim.hardware.fields import Fields
from sim.hardware.formats import Format
from sim.hardware.layers import MLP_PROJECTIONS, Layer

LEFT = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
NEVER_QUANTISED = re.compile(
    r"lm_head|embed|router|norm|vis(ion|ual)|multi_modal|audio|mm_|\bmtp|eh_proj|(^|\.)(\w*_)?gate([.*]|$)"
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
"""Modules that are fused, or called otherwise."""
OF_MLPS = frozenset(MLP_PROJECTIONS)
WHOLE = "*"
Parts = tuple[frozenset[str], ...]
"""What each layer has of `attention`, the `dense` and shared MLP, and routed `experts`."""


def left_out(form: Format, fields: Fields, layers: Sequence[Layer]) -> tuple[Format, Parts, list[str]]:
    """The format without the parts that no layer has in it; what each layer leaves in 16 bits; remarks.

    A part of which only a projection is named that is not known is taken to be left out whole: a remark.
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
                own[part] |= names or {WHOLE}
                unknown |= {part} if not names and _is_projection(module) else set()
    left = [
        {name for part, names in own.items() for name in _left(layer, part, names)}
        for own, layer in zip(found, layers, strict=True)
    ]
    for part in sorted(form.parts):
        have = [own for own, layer in zip(left, layers, strict=True) if part in layer.parts]
        if have and all(part in own for own in have):
            form = form.without(part)
    kept = tuple(frozenset(name for name in own if name.partition(".")[0] in form.parts) for own in left)
    whole = ", ".join(sorted(unknown))
    remark = f"{key} in quantization_config names some projections of {whole}: priced in 16 bits whole"
    return form, kept, [remark] if unknown else []


def _left(layer: Layer, part: str, names: set[str]) -> set[str]:
    """What a layer has of that in 16 bits: the part, or `part.projection` for some."""
    own = set(layer.attention.projections(1) if part == "attention" else MLP_PROJECTIONS)
    if WHOLE in names or own <= names:
        return {part}
    return {f"{part}.{name}" for name in own & names}


def _projections(module: str) -> set[str]:
    """The projections that a module or pattern names."""
    spelt = EITHER.sub(lambda match: " ".join(f"{each}_proj" for each in match[1].split("|")), module)
    named = [first or second for first, second in PROJECTION.findall(spelt)]
    return {name for each in named for name in SPELT.get(each, (each,))}


def _entries(fields: Fields) -> tuple[str, list[str]]:
    """The list of modules that are left out, and its key; rules of GPTQModel that begin with `-:` too."""
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
    """Whether a rule of AutoRound leaves a module in 16 bits or more."""
    bits = rule.get("bits") if isinstance(rule, dict) else None
    return isinstance(bits, int) and bits >= 16


def _parts(module: str, names: set[str], there: frozenset[str]) -> set[str]:
    """Those of the parts there that a module is of; the name of a whole layer is all of them."""
    if not module.strip(".*"):
        return set(there)
    part = next((part for word, part in PARTS.items() if word in module), None)
    if part is None and names:
        return {"dense", "experts"} & there if names <= OF_MLPS else {"attention"} & there
    whole_mlp = part == "dense" and "shared" not in module and not _is_projection(module)
    return {*({part} if part else ()), *(("experts",) if whole_mlp else ())} & there


def _is_projection(module: str) -> bool:
    return bool(re.search(r"_proj|\bw[123]\b|\bqkv|with_mqa", module))
