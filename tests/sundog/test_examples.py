"""Public names have docstrings with examples that run."""

import ast
import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import sundog
from tests.test_layers import ROOT

FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", sundog.__all__)
def test_the_example_of_a_public_name_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the root, where the traces are; each has an example."""
    monkeypatch.chdir(ROOT)
    text = getattr(sundog, name).__doc__
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples, f"{name} has no example"
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append)
    assert not said, "".join(said)


def test_an_example_that_is_wrong_would_be_found() -> None:
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    assert doctest.DocTestRunner(optionflags=FLAGS).run(example, out=lambda _: None).failed == 1


def functions() -> Iterator[tuple[str, object]]:
    """The public functions, and the methods of public classes that take more than themselves."""
    for name in sundog.__all__:
        found = getattr(sundog, name)
        if not inspect.isclass(found):
            yield name, found
        elif name in ("Policy", "Router", "Predictor", "Scaler"):
            yield from (
                (f"{name}.{each}", method)
                for each, method in vars(found).items()
                if inspect.isfunction(method) and not each.startswith("_")
            )


@pytest.mark.parametrize(("name", "function"), list(functions()))
def test_a_public_function_names_its_arguments_and_its_result(name: str, function: object) -> None:
    """In Google's style: `Args:` has each parameter, `Returns:` or `Yields:` the result."""
    assert callable(function)
    text, signature = function.__doc__ or "", inspect.signature(function)
    for each in signature.parameters.values():
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        assert each.name == "self" or f"    {stars}{each.name}: " in text, (
            f"{name} says nothing of {each.name}"
        )
    is_silent = signature.return_annotation in (None, "None")
    assert is_silent or "Returns:\n" in text or "Yields:\n" in text, f"{name} does not say what it returns"


PACKAGES = sorted(
    file
    for folder in ("actors", "runtime", "sim", "sundog")
    for file in (ROOT / folder).rglob("__init__.py")
    if ">>>" in file.read_text(encoding="utf-8") and file.parent.name != "sundog"
)


@pytest.mark.parametrize("file", PACKAGES, ids=[str(file.parent.relative_to(ROOT)) for file in PACKAGES])
def test_the_example_of_a_package_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    assert text is not None
    example = doctest.DocTestParser().get_doctest(text, {}, str(file), None, None)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append)
    assert not said, "".join(said)
