"""`sundog export`: a policy for another engine."""

from dataclasses import dataclass
from pathlib import Path

import click

from sundog.ends import remark, writing
from sundog.options.row import OneOf, option
from sundog.options.takes import command, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of the target of an export."""

    to: str = option("vllm", OneOf(("vllm",)), "The engine to write for.")


@command
@takes(ExportOptions)
@click.option("-o", "--output", metavar="FILE", help="The .py to write; by default the policy's name.")
@click.argument("policy")
def export(asked: ExportOptions, policy: str, output: str | None) -> None:
    """Write a policy as a scheduler class for vLLM.

    POLICY is as for --policy. docs/passport.md describes how to use the file, and how its equivalence is
    tested.
    """
    from sundog.export.exported import exported
    from sundog.sim.files.run_files import write_whole

    name = policy.partition(":")[0].removesuffix(".py").rpartition("/")[2].replace("-", "_")
    path = Path(output or f"{name}_{asked.to}.py")
    text, remarks = exported(policy, path)
    with writing(path):
        write_whole(path, text)
    for each in remarks:
        remark(f"{path}: {each}")
    click.echo(path)
