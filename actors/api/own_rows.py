"""Live page for the holder of one of several keys: names of its own requests and tenant only.

Numbers stay: a client sees how many others wait and run, and how long, but not who they are.
"""

import json
from collections.abc import Callable

from sundog.actors.api.bodies.parsing import Json
from sundog.actors.api.limits import KeyHolder

PREFIX = b"data: "
OTHER = "another client's"


def with_own_rows(event: bytes, holder: KeyHolder, is_own: Callable[[str], bool]) -> bytes:
    """Return an event of the live page without ids, tenants and adapters of others' requests.

    `is_own` returns whether a request's id is the holder's.
    """
    shown: Json = json.loads(event.removeprefix(PREFIX))
    for rows in ("running", "waiting", "ended"):
        for row in shown[rows]:
            if not is_own(row["id"]):
                row |= {"id": OTHER, "tenant": None, "adapter": None}
            if row.get("behind") is not None and not is_own(row["behind"]):
                row["behind"] = OTHER
    tenants = [row for row in shown["tenants"] if row[0] is not None and row[0] == holder.tenant]
    measured = [row for row in shown["measured"] if row[0] is not None and row[0] == holder.tenant]
    shown |= {"tenants": tenants, "measured": measured}
    return PREFIX + json.dumps(shown, separators=(",", ":")).encode() + b"\n\n"
