"""The file that describes a workload (TOML), checked at the door."""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict

from actors.core.config import ConfigError
from actors.core.records import dataclass
from sim.files.toml import checked, read_toml
from sim.trace.read import read_trace
from sim.trace.record import TraceRequest
from sim.workload.arrivals import check_positive
from sim.workload.lengths import STRICT
from sim.workload.workload import Workload

PATHS = ("trace", "tokenizer")
"""Keys, in any table, whose values are files."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A recorded trace, `rate_scale` times as fast, with prompts and outputs so much longer.

    What prompts contain is kept where they keep their length, and unknown otherwise.
    """

    trace: str
    rate_scale: float = 1.0
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    limit: int | None = None
    tokenizer: str | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        check_positive(self, "rate_scale", "prompt_scale", "output_scale")
        if self.limit is not None:
            check_positive(self, "limit")

    @property
    def hash_block_tokens(self) -> int:
        """Tokens per id of the prompts' contents; 0 where they are not known."""
        first = next(iter(read_trace(self.trace, self.tokenizer)))
        return first.hash_block_tokens if self.prompt_scale == 1 else 0

    @property
    def is_plain(self) -> bool:
        """Whether it is the trace as it was recorded."""
        return self.rate_scale == self.prompt_scale == self.output_scale == 1

    @property
    def repeats(self) -> bool:
        """Whether every seed gives the same requests."""
        return True

    def requests(self, seed: int) -> list[TraceRequest]:
        """The same for every seed."""
        rows: list[TraceRequest] = []
        for row in read_trace(self.trace, self.tokenizer):
            if self.limit is not None and len(rows) == self.limit:
                break
            rows.append(self._scaled(row))
        return rows

    def _scaled(self, row: TraceRequest) -> TraceRequest:
        if self.is_plain:
            return row
        kept = self.prompt_scale == 1
        return row._replace(
            arrival_s=round(row.arrival_s / self.rate_scale, 9),
            num_prompt_tokens=max(round(row.num_prompt_tokens * self.prompt_scale), 1),
            num_output_tokens=max(round(row.num_output_tokens * self.output_scale), 1),
            hash_ids=row.hash_ids if kept else None,
            hash_block_tokens=row.hash_block_tokens if kept else 0,
        )


Source = Workload | Scaled


def read_spec(path: str | Path) -> Source:
    """The workload that a TOML file describes; raises ConfigError, which names the field.

    With a table `scaled` it is a recorded trace, otherwise one of generated requests.
    """
    return parse_spec(read_values(path), path)


def read_values(path: str | Path) -> dict[str, Any]:
    """What the file says; traces in it are relative to the file."""
    return _rooted(read_toml(path), Path(path).parent)


def parse_spec(values: dict[str, Any], path: str | Path) -> Source:
    """The workload that these values describe; errors name `path`."""
    if "scaled" in values:
        if extra := values.keys() - {"scaled"}:
            raise ConfigError(f"{path}: {min(extra)} does not go with the table scaled")
        return checked(Scaled, values["scaled"], path, ("scaled",))
    return checked(Workload, values, path)


def _rooted(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values with every path in them put behind the folder of the file that holds them."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found[name] = _rooted(value, folder)
        else:
            is_path = name in PATHS and isinstance(value, str)
            found[name] = str(folder / Path(value).expanduser()) if is_path else value
    return found
