"""The tensors of a model folder by their files' headers alone, checked before a byte of them is read.

The format (https://huggingface.co/docs/safetensors): eight bytes with the header's length, the header in JSON
with each tensor's dtype, shape and place, the tensors.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sundog.runtime.checkpoint.facts import LoadError, read_json

FLOATS = ("F64", "F32", "F16", "BF16")
INDEX = "model.safetensors.index.json"
MOST_HEADER_BYTES = 100_000_000
"""The most bytes of a header, which is the format's own limit."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The place and kind of a tensor: `dtype` as the format calls it, such as BF16 or F8_E4M3."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's weights by name; LoadError names a file that is missing or broken."""
    tensors: dict[str, StoredTensor] = {}
    for file in _files(folder):
        tensors |= file_tensors(file)
    return tensors


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        single = folder / "model.safetensors"
        if single.is_file():
            return [single]
        raise LoadError(f"{folder} has shards of weights but no {INDEX} that says what is in which")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise LoadError(f"cannot read {index}: it has no weight_map")
    for tensor, name in names.items():
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise LoadError(f"cannot read {index}: {tensor} is in {name!r}, which is no file beside it")
    files = [folder / name for name in sorted(set(names.values()))]
    for file in files:
        if not file.is_file():
            raise LoadError(f"{folder} lacks {file.name}, which {INDEX} names: download it again")
    return files


@contextmanager
def readable_by_library(folder: Path) -> Iterator[Path]:
    """The folder, or one with links to its files and an index that has what transformers needs."""
    index = read_json(folder / INDEX)
    if not index or isinstance(index.get("metadata"), dict):
        yield folder
        return
    with TemporaryDirectory() as name:
        links = Path(name)
        for file in folder.iterdir():
            if file.name != INDEX:
                (links / file.name).symlink_to(file.resolve())
        (links / INDEX).write_text(json.dumps({**index, "metadata": {}}))
        yield links


def file_tensors(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one file; LoadError if it is cut off or none."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, MOST_HEADER_BYTES):
            raise LoadError(f"cannot read {file}: it is cut off or no safetensors file; download it again")
        try:
            header = json.loads(stream.read(length))
            rows = {name: row for name, row in header.items() if name != "__metadata__"}
            tensors = {
                name: StoredTensor(file, row["dtype"], tuple(row["shape"])) for name, row in rows.items()
            }
            last = max((int(row["data_offsets"][1]) for row in rows.values()), default=0)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
            raise LoadError(f"cannot read {file}: its header is no safetensors header") from error
    if 8 + length + last != size:
        raise LoadError(
            f"cannot read {file}: its header promises {8 + length + last:,} bytes and it has {size:,};"
            " download it again"
        )
    return tensors


def check_floats(tensors: dict[str, StoredTensor]) -> None:
    """Refuse weights whose numbers mean nothing without scales that nothing tells of."""
    for name, stored in tensors.items():
        if stored.dtype not in FLOATS and name.endswith("weight"):
            raise LoadError(
                f"{stored.file}: {name} is stored as {stored.dtype}, and config.json has no"
                " quantization_config that says what its numbers mean"
            )
