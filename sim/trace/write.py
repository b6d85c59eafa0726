"""Writing our own format; the same requests give the same bytes, gzipped or not."""

import gzip
import json
from collections.abc import Iterable

from actors.core.config import ConfigError
from sim.files.whole_file import write_whole
from sim.trace.jsonl_rows import OWN_FORMAT, OWN_VERSION, UNITS
from sim.trace.record import TraceRequest, default_id


def write_trace(
    path: str,
    requests: Iterable[TraceRequest],
    *,
    provenance: str,
    seed: int | None = None,
    hash_block_tokens: int = 0,
) -> int:
    """Write the requests, gzipped if the name ends in .gz; returns their number.

    `provenance` says where they come from. Default ids and other defaults are left out.
    """
    header: dict[str, object] = {"format": OWN_FORMAT, "version": OWN_VERSION, "units": UNITS}
    header |= {"seed": seed, "provenance": provenance}
    if hash_block_tokens:
        header["hash_block_tokens"] = hash_block_tokens
    lines = [json.dumps(header)]
    for index, request in enumerate(requests):
        if request.hash_ids is not None and request.hash_block_tokens != hash_block_tokens:
            raise ConfigError(
                f"{request.request_id} names contents by {request.hash_block_tokens} tokens,"
                f" the file by {hash_block_tokens}"
            )
        lines.append(json.dumps(_row(index, request), separators=(",", ":")))
    data = ("\n".join(lines) + "\n").encode()
    if path.endswith(".gz"):
        # No time stamp or name inside, so that equal traces are equal files.
        data = gzip.compress(data, mtime=0)
    write_whole(path, data)
    return len(lines) - 1


def _row(index: int, request: TraceRequest) -> dict[str, object]:
    row: dict[str, object] = {
        "arrival_s": request.arrival_s,
        "prompt_tokens": request.num_prompt_tokens,
        "output_tokens": request.num_output_tokens,
    }
    if request.hash_ids is not None:
        row["hash_ids"] = request.hash_ids
    if request.priority:
        row["priority"] = request.priority
    if request.tenant is not None:
        row["tenant"] = request.tenant
    if request.session is not None:
        row["session"] = request.session
    for name in ("slo_ttft_s", "slo_tpot_s", "slo_e2e_s"):
        if getattr(request, name) is not None:
            row[name] = getattr(request, name)
    if request.after is not None:
        row["after"] = request.after
        row["pause_s"] = request.pause_s
    if request.request_id != default_id(index):
        row["id"] = request.request_id
    return row
