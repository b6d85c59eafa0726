"""Tensors of a model folder, read from the files' headers and checked before any data is read.

The format (https://huggingface.co/docs/safetensors): eight bytes with the header's length, the header in JSON
with each tensor's dtype, shape and place, the tensors.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

from sundog.runtime.checkpoint.facts import LoadError, read_json

FLOATS = ("F64", "F32", "F16", "BF16")
INDEX = "model.safetensors.index.json"
MOST_HEADER_BYTES = 100_000_000
"""Largest header in bytes, which is the format's own limit."""
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of a number of each type in the format."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Place and type of a tensor: `dtype` in the format's terms, such as BF16 or F8_E4M3."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of the folder's weights by name; LoadError names a missing or broken file."""
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
    """Yield the folder, or one with links to its files and an index that transformers can read."""
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
    """Return the tensors of one file; LoadError if it is truncated or invalid."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, MOST_HEADER_BYTES):
            raise LoadError(f"cannot read {file}: it is cut off or no safetensors file; download it again")
        try:
            header = json.loads(stream.read(length), object_pairs_hook=_once)
            rows = {name: row for name, row in header.items() if name != "__metadata__"}
            tensors = {
                name: StoredTensor(file, row["dtype"], tuple(row["shape"])) for name, row in rows.items()
            }
            places = {name: _place(row["data_offsets"]) for name, row in rows.items()}
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
            raise LoadError(f"cannot read {file}: its header is no safetensors header") from error
    last = max([end for _, end in places.values()], default=0)
    if 8 + length + last != size:
        raise LoadError(
            f"cannot read {file}: its header promises {8 + length + last:,} bytes and it has {size:,};"
            " download it again"
        )
    _check_places(file, tensors, places)
    return tensors


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the object of these pairs; ValueError for duplicate names, which readers resolve differently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


def _place(offsets: object) -> tuple[int, int]:
    match offsets:
        case [int(begin), int(end)] if 0 <= begin <= end:
            return begin, end
    raise ValueError(f"{offsets} is no place")


def _check_places(file: Path, tensors: dict[str, StoredTensor], places: dict[str, tuple[int, int]]) -> None:
    """Raise LoadError for unknown types, and for tensors that overlap or have a wrong size."""
    begin, wrong = 0, f"cannot read {file}:"
    for name, (first, last) in sorted(places.items(), key=lambda each: each[1]):
        stored = tensors[name]
        if not isinstance(stored.dtype, str) or stored.dtype not in BITS:
            kind = _short(stored.dtype)
            raise LoadError(f"{wrong} {_short(name)} is stored as {kind}, no type of the format")
        if not all(type(size) is int and size >= 0 for size in stored.shape):
            raise LoadError(f"{wrong} {_short(name)} has the shape {_short(stored.shape)}")
        if first != begin:
            raise LoadError(f"{wrong} {_short(name)} begins at byte {first:,}, where {begin:,} is its place")
        if 8 * (last - first) != BITS[stored.dtype] * prod(stored.shape):
            size = f"{last - first:,} bytes"
            raise LoadError(f"{wrong} {_short(name)} has {size}, not those of its shape and type")
        begin = last


def _short(value: object) -> str:
    """Return a name or value of the file, cut to one line."""
    text = str(value) if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= 100 else text[:100] + "..."


def check_floats(tensors: dict[str, StoredTensor]) -> None:
    """Raise LoadError for weights that need scales which are not described."""
    for name, stored in tensors.items():
        if stored.dtype not in FLOATS and name.endswith("weight"):
            raise LoadError(
                f"{stored.file}: {name} is stored as {stored.dtype}, and config.json has no"
                " quantization_config that says what its numbers mean"
            )
