"""`sundog export`: take a policy to another engine."""

from pathlib import Path

import click

from actors.config import ConfigError
from sundog.ends import remark
from sundog.options.takes import command


@command
@click.option("--to", "target", required=True, metavar="ENGINE", help="The engine; vllm is known.")
@click.option("-o", "--output", metavar="FILE", help="The .py to write; by default the policy's name.")
@click.argument("policy")
def export(policy: str, target: str, output: str | None) -> None:
    """Write a policy as a scheduler class of another engine, one Python file.

    POLICY is what --policy takes. docs/passport.md says how the file is used, and what is proved of it.
    """
    from sundog.export.exported import exported

    name = policy.partition(":")[0].removesuffix(".py").rpartition("/")[2].replace("-", "_")
    path = Path(output or f"{name}_vllm.py")
    text, remarks = exported(policy, target, path)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
    for each in remarks:
        remark(f"{path}: {each}")
    click.echo(path)
