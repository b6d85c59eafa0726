"""Fixtures of the GPU tests, on a real or a pretended device."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a small model of some architecture, built when it is first asked for."""
    from tests.runtime.models import build_model

    folders: dict[str, Path] = {}

    def found(architecture: str) -> Path:
        if architecture not in folders:
            folders[architecture] = tmp_path_factory.mktemp(architecture)
            build_model(architecture, folders[architecture])
        return folders[architecture]

    return found
