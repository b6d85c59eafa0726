"""File that runs a policy in vLLM: the policy's source, the scheduler class, and its parameters."""

import ast
from pathlib import Path

from sundog.actors.config import ConfigError
from sundog.actors.core.queue.policy import defines
from sundog.actors.policy_file import PolicyRecipe, find_policy, policy_recipe

TEMPLATE = Path(__file__).with_name("vllm_scheduler.py")


def exported(text: str, output: Path) -> tuple[str, list[str]]:
    """Return the file's text, and remarks on what it omits; raises ConfigError for features that vLLM
    lacks.
    """
    if not output.stem.isidentifier() or output.suffix != ".py":
        raise ConfigError(
            f"{output} cannot be imported: let its name be letters, digits and underscores, and end in .py"
        )
    policy = find_policy(text)
    if policy.prefills_first:
        raise ConfigError(
            f"policy {text} has prefills_first: vLLM computes running requests before it looks at waiting"
            " ones, and a scheduler_cls cannot have it otherwise"
        )
    remarks = []
    if defines(policy, "urgency"):
        remarks.append("its urgency is left out: it applies to --preempt-for-priority, which vLLM lacks")
    recipe = policy_recipe(text)
    made = f"{recipe.name}({', '.join(f'{key}={value!r}' for key, value in recipe.arguments.items())})"
    if recipe.file is None:
        made = f"sundog_policies.POLICIES[{recipe.name!r}]{made[len(recipe.name) :]}"
    parts = [
        _head(text, output),
        "" if recipe.file is None else _source(recipe),
        _template(),
        f"Carrying.sundog_policy = {made}\nCarrying.sundog_name = {text!r}\n",
    ]
    return "\n\n".join(part for part in parts if part), remarks


def _head(text: str, output: Path) -> str:
    return f"""\
# Written by `sundog export {text} --to vllm`: change the policy's own file, and write this one again.
#
#     PYTHONPATH={output.parent}:SUNDOG vllm serve MODEL --scheduler-cls {output.stem}.PolicyScheduler
#
# SUNDOG is the folder of the package `sundog`, whose actors/core needs no other. Where steps are not planned
# ahead, as on CPUs, give {output.stem}.SyncPolicyScheduler."""


def _source(recipe: PolicyRecipe) -> str:
    assert recipe.file is not None
    source = recipe.file.read_text(encoding="utf-8")
    theirs = _defined(source) & _defined(_template())
    if theirs:
        raise ConfigError(
            f"policy file {recipe.file} defines {', '.join(sorted(theirs))}, which the exported class"
            " defines, too: rename it"
        )
    return source.strip("\n")


def _template() -> str:
    source = TEMPLATE.read_text(encoding="utf-8")
    first = ast.parse(source).body[0].end_lineno or 0
    return "".join(source.splitlines(keepends=True)[first:]).strip("\n")


def _defined(source: str) -> set[str]:
    found = set[str]()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found
