"""Sphinx's settings; `tools/site/__main__.py` makes the pages that it reads."""

from typing import Any

project = "Sundog"
author = copyright = "The Sundog authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
nb_execution_mode = "off"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
html_theme = "furo"
html_title = "Sundog"
html_copy_source = html_show_sourcelink = False
# A page may stand in the lists of two readers; a listing may have `…` in it.
suppress_warnings = ["toc.multiple_toc_parents", "misc.highlighting_failure"]


def setup(app: Any) -> None:
    """Keep docstrings of properties unchanged: Napoleon would treat the words before a colon as a type."""
    kept: dict[str, list[str]] = {}

    def keep(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
        kept[name] = lines.copy()

    def restore(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
        before = kept.pop(name)
        if what in {"attribute", "data", "property"}:
            lines[:] = before

    app.connect("autodoc-process-docstring", keep, priority=100)
    app.connect("autodoc-process-docstring", restore, priority=900)
