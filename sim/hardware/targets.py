"""Which parts of a model the groups of compressed-tensors are of: their `targets`.

A target is a class (`Linear`: every projection), the name of a module, or a pattern of names behind `re:`.
"""

import re

from actors.core.config import ConfigError
from sim.hardware.fields import Fields
from sim.hardware.formats import Format
from sim.hardware.unquantised import Parts

NAMES = ("gate_proj", "up_proj", "down_proj")
MIXTRAL = ("w1", "w2", "w3")
PROJECTIONS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "attention": (("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),),
    "dense": (("mlp", NAMES), ("mlp.shared_expert", NAMES), ("mlp.shared_experts", NAMES)),
    "experts": (("mlp.experts.0", NAMES), ("block_sparse_moe.experts.0", MIXTRAL)),
}
"""What families call the modules of a part, one way or another."""


def targeted(form: Format, fields: Fields, layers: Parts) -> Format:
    """The format without the parts that no target names; ConfigError for what is not understood."""
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
    """Which modules are named by any target; those targets are met."""
    found = []
    for name in names:
        own = [target for target in targets if any(_names(target, each) for each in _spelt(where, name))]
        met.update(own)
        found.append(bool(own))
    return found


def _spelt(where: str, name: str) -> list[str]:
    """A module of some layer by its own name, and by that of what it is fused into."""
    fused = re.sub(r"^[qkv]_proj$", "qkv_proj", re.sub(r"^(gate|up)_proj$", "gate_up_proj", name))
    return [f"model.layers.1.{where}.{each}" for each in {name, fused}]


def _names(target: str, module: str) -> bool:
    if not target.startswith("re:"):
        return module == target or module.endswith(f".{target}")
    try:
        return re.match(target[3:], module) is not None
    except re.error:
        return False
