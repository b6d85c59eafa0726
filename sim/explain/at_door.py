"""A request that was refused at the door of a replay: no scheduler has heard of it, and no journal has it."""

from dataclasses import asdict, dataclass
from pathlib import Path

from sim.files.run_files import REQUESTS
from sim.record.run_directory import open_run


@dataclass(frozen=True, slots=True)
class RefusedAtDoor:
    """It came at `arrival_s`, and `refusal` says why it was turned away."""

    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    tenant: str | None
    refusal: str

    @property
    def data(self) -> dict[str, object]:
        """For programs: the fields, and how it ended."""
        return {**asdict(self), "reason": "refused"}

    def __str__(self) -> str:
        return (
            f"Request {self.request_id} arrived at {self.arrival_s:,.3f} s and was refused at the door:"
            f" {self.refusal}"
        )


def refused_at_door(record: Path, request_id: str) -> RefusedAtDoor | None:
    """The request, if the run in the folder turned it away; O(requests)."""
    if not (record / REQUESTS).is_file():
        return None
    import pyarrow.compute as pc

    requests = open_run(record).requests()
    if "refusal" not in requests.column_names:
        return None
    found = requests.filter(pc.equal(requests["request_id"], request_id)).to_pylist()
    rows = [row for row in found if row["refusal"] is not None]
    if not rows:
        return None
    row = rows[0]
    return RefusedAtDoor(
        request_id, row["arrival_s"], row["num_prompt_tokens"], row["tenant"], row["refusal"]
    )
