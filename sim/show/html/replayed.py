"""The live page of a recorded run: one file, with its instants inside, that needs no server."""

import base64
import gzip
import json
from importlib.resources import files
from pathlib import Path

from sim.explain.history import History
from sim.explain.instants import Instants
from sim.explain.request_rows import Json

PLACE = "<!-- recorded -->"
"""Where the live page takes what was recorded."""


def replayed_page(history: History, name: str, num_instants: int, from_s: float, to_s: float) -> str:
    """The page, with instants at even distances from `from_s` to `to_s` of the run."""
    header, instants = history.header, Instants(history)
    facts: Json = {
        "model": name,
        "recorded": True,
        "policy": header.policy or "unknown policy",
        "router": header.router or "one engine",
        "max_model_len": None,
        "max_num_seqs": header.max_num_seqs,
        "max_num_batched_tokens": header.max_num_batched_tokens,
        "version": None,
    }
    gap_s = (to_s - from_s) / max(num_instants - 1, 1)
    lines = [
        json.dumps(instants.at(from_s + number * gap_s) | {"facts": facts}, separators=(",", ":"))
        for number in range(num_instants)
    ]
    # No time stamp inside, so that equal runs are equal pages.
    packed = base64.b64encode(gzip.compress("\n".join(lines).encode(), mtime=0)).decode()
    page = (files("actors") / "api" / "pages" / "dashboard.html").read_text(encoding="utf-8")
    assert PLACE in page
    return page.replace(PLACE, f'<script id="recorded" type="text/plain">{packed}</script>')


def write_replayed(path: Path, page: str) -> None:
    """Write the page; raises OSError."""
    path.write_text(page, encoding="utf-8")
