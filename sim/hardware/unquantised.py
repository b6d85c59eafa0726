"""What a `quantization_config` leaves in 16 bits: whole parts of all layers, or modules of single ones."""

import re
from collections import defaultdict

from actors.core.config import ConfigError
from sim.hardware.fields import Fields
from sim.hardware.formats import Format

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
OUTPUT = re.compile(r"\b(o_proj|out_proj|down_proj|down|w2|dense)\b")
Parts = tuple[frozenset[str], ...]
"""What each layer has of `attention`, the `dense` and shared MLP, and routed `experts`."""


def left_out(form: Format, fields: Fields, layers: Parts) -> tuple[Format, Parts, list[str]]:
    """The format without the parts that are left in 16 bits in every layer; what each layer leaves; remarks.

    A part of which only some projections are named is taken to be left out whole, and a remark says so.
    """
    key, entries = _entries(fields)
    single: dict[str, set[int]] = defaultdict(set)
    some: set[str] = set()
    for entry in entries:
        if NEVER_QUANTISED.search(entry):
            continue
        place = LAYER.search(entry)
        module = entry if place is None else place[2]
        index = None if place is None else int(place[1])
        if index is not None and index >= len(layers):
            continue  # a layer that predicts further tokens
        parts = _parts(module, frozenset[str]().union(*layers) if index is None else layers[index])
        some |= {part for part in parts if _is_projection(module) and not OUTPUT.search(module)}
        if index is None:
            form = _without(form, parts)
            continue
        for part in parts:
            single[part].add(index)
    for part, found in single.items():
        if len(found) == sum(part in parts for parts in layers):
            form = form.without(part)
    left = tuple(
        frozenset(part for part in form.parts if index in single.get(part, ()))
        for index in range(len(layers))
    )
    return form, left, _of_projections(key, some & {*single} | some - form.parts, entries)


def _without(form: Format, parts: set[str]) -> Format:
    for part in parts:
        form = form.without(part)
    return form


def _of_projections(key: str, parts: set[str], entries: list[str]) -> list[str]:
    """A remark where only some projections of a part were named, and none of them the last."""
    named = " ".join(entries)
    if not parts or OUTPUT.search(named):
        return []
    whole = ", ".join(sorted(parts))
    return [f"{key} in quantization_config names some projections of {whole}: priced in 16 bits whole"]


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


def _parts(module: str, there: frozenset[str]) -> set[str]:
    """Those of the parts there that a module is; the name of a whole layer is all of them."""
    if not module.strip(".*"):
        return set(there)
    part = next((part for word, part in PARTS.items() if word in module), None)
    whole_mlp = part == "dense" and "shared" not in module and not _is_projection(module)
    return {*({part} if part else ()), *(("experts",) if whole_mlp else ())} & there


def _is_projection(module: str) -> bool:
    return bool(re.search(r"_proj|\bw[123]\b|\bqkv|with_mqa", module))
