"""Names for shell completion, read on demand to keep the start of commands fast."""

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem


def gpu_names() -> Iterable[str]:
    """Return the names of known GPUs."""
    from sundog.sim.hardware.gpu import known_gpus

    return known_gpus()


def model_names() -> Iterable[str]:
    """Return the names of known models."""
    from sundog.sim.hardware.model import known_models

    return known_models()


def complete_model(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the argument MODEL: a file, a folder or, for `emulate`, a known model."""
    names = model_names() if ctx.info_name == "emulate" else ()
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]
