"""Header of a GGUF file: its metadata, and the name, type, shape and offset of each tensor.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): a magic word, a version, the numbers
of tensors and of metadata, the metadata, the tensors' rows, their bytes.

Laws: every value is checked against the file's size before use, so that any bytes give a `GgufFile` or one
LoadError, in time and memory proportional to the file. No tensor overlaps another.
"""

import math
import mmap
import re
import shlex
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from sundog.runtime.checkpoint.facts import LoadError

MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST_TENSORS, MOST_FIELDS, MOST_DIMS = 1_000_000, 100_000, 4
MOST_NAME_BYTES = 65_535
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
"""`struct` formats of metadata's numbers, by type in the file."""
BOOL, STRING, ARRAY = 7, 8, 9
DEFAULT_ALIGNMENT = 32
Value = str | int | float | bool | list[str] | list[int] | list[float] | list[bool]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Row of a tensor: `kind` is ggml's type, such as Q4_K; the shape is torch's, outputs first."""

    name: str
    kind: str
    shape: tuple[int, ...]
    at: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Header of a file; `tensors` by name, in the order of their bytes."""

    path: Path
    fields: dict[str, Value]
    tensors: dict[str, GgufTensor]

    @property
    def architecture(self) -> str:
        """Family of the model, by llama.cpp's name."""
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """Return the text of a key; LoadError if it is missing or no text."""
        value = self.fields.get(key)
        if not isinstance(value, str):
            raise self.wrong(f"{key} is {_short(value)}, no text")
        return value

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int:
        """Return the whole number of a key; LoadError if it is missing or out of bounds."""
        value = self.fields.get(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(f"{key} is {_short(value)}, no whole number from {least:,} to {most:,}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Return the positive number of a key; LoadError otherwise."""
        value = self.fields.get(key, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:  # type: ignore[operator]  # a number
            raise self.wrong(f"{key} is {_short(value)}, no positive number")
        return float(value)  # type: ignore[arg-type]  # a number

    def texts(self, key: str) -> list[str]:
        """Return the list of texts of a key; LoadError if there is none."""
        value = self.fields.get(key)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(f"{key} is {_short(value)}, no list of texts")
        return value  # type: ignore[return-value]  # as was just seen

    def wrong(self, what: str) -> LoadError:
        """Return a LoadError that names this file."""
        return LoadError(f"{self.path} is not served: {what}")


def read_header(path: Path) -> GgufFile:
    """Return a file's header; LoadError if it is truncated, or no supported GGUF file."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).read()
    except (OSError, ValueError) as error:
        if isinstance(error, LoadError):
            raise
        why = error.strerror if isinstance(error, OSError) else "it is empty"
        raise LoadError(f"cannot read {path}: {why or error}") from None


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data = path, data
        self._at, self._size = 0, len(data)

    def read(self) -> GgufFile:
        if self._take(4) != MAGIC:
            raise self._wrong("it does not begin with GGUF's magic word")
        version = self._number("I")
        if version not in VERSIONS:
            raise self._wrong(f"its version is {version:,}; versions 2 and 3 are read, little-endian")
        num_tensors, num_fields = self._number("Q"), self._number("Q")
        if num_tensors > MOST_TENSORS or num_fields > MOST_FIELDS:
            raise self._wrong(f"it promises {num_tensors:,} tensors and {num_fields:,} fields of metadata")
        fields: dict[str, Value] = {}
        for _ in range(int(num_fields)):
            key = self._name("a key")
            if key in fields:
                raise self._wrong(f"{_short(key)} is given twice")
            fields[key] = self._value(self._number("I"), key)
        if fields.get("split.count", 1) not in (0, 1):
            raise self._wrong(self._how_to_merge(fields["split.count"]))
        tensors = self._tensors(int(num_tensors), fields)
        return GgufFile(self._path, fields, tensors)

    def _how_to_merge(self, count: Value) -> str:
        """Return the reason and the command of llama.cpp that joins the parts, by their names there."""
        numbered = re.fullmatch(r"(.+)-\d{5}(-of-\d{5})\.gguf", self._path.name)
        name = self._path.stem if numbered is None else numbered[1]
        first = self._path if numbered is None else self._path.with_name(f"{name}-00001{numbered[2]}.gguf")
        merged = self._path.with_name(f"{name}{'-merged' if numbered is None else ''}.gguf")
        return (
            f"it is one of {_short(count)} parts of a model: join them with"
            f" `llama-gguf-split --merge {shlex.quote(str(first))} {shlex.quote(str(merged))}`"
        )

    def _tensors(self, count: int, fields: dict[str, Value]) -> dict[str, GgufTensor]:
        alignment = fields.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 2**20 or alignment & (alignment - 1):
            raise self._wrong(f"general.alignment is {_short(alignment)}, no power of two")
        rows = [self._row() for _ in range(count)]
        begin = -(-self._at // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        end = begin
        for row in sorted(rows, key=lambda row: (row.at, row.num_bytes)):
            name = _short(row.name)
            if row.name in found:
                raise self._wrong(f"{name} is given twice")
            at = begin + row.at
            if at < end:
                raise self._wrong(f"{name} begins within another tensor")
            end = at + row.num_bytes
            if end > self._size:
                raise self._wrong(
                    f"{name} ends at byte {end:,} of {self._size:,}: it is cut off; download it again"
                )
            found[row.name] = replace(row, at=at)
        return found

    def _row(self) -> GgufTensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name = self._name("a tensor's name")
        num_dims = self._number("I")
        if not 1 <= num_dims <= MOST_DIMS:
            raise self._wrong(f"{_short(name)} has {num_dims:,} dimensions")
        shape = tuple(int(self._number("Q")) for _ in range(int(num_dims)))[::-1]
        number, at = self._number("I"), self._number("Q")
        try:
            kind = GGMLQuantizationType(int(number))
        except ValueError:
            raise self._wrong(f"{_short(name)} is stored as type {number:,}, which is not known") from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if not all(shape) or shape[-1] % block:
            raise self._wrong(f"{_short(name)} has the shape {_short(shape)}, which {kind.name} cannot have")
        num_bytes = math.prod(shape) // block * block_bytes
        return GgufTensor(name, kind.name, shape, at=int(at), num_bytes=num_bytes)

    def _value(self, kind: int | float, key: str) -> Value:
        if kind == STRING:
            return self._string(key)
        if kind == BOOL:
            return self._take(1) != b"\0"
        if kind != ARRAY:
            return self._number(self._code(kind, key))
        inner, count = self._number("I"), int(self._number("Q"))
        if inner == STRING:
            if 8 * count > self._left():
                raise self._wrong(f"{_short(key)} promises {count:,} texts, more than the file holds")
            return [self._string(key) for _ in range(count)]
        code = "?" if inner == BOOL else self._code(inner, key)
        if struct.calcsize(code) * count > self._left():
            raise self._wrong(f"{_short(key)} promises {count:,} numbers, more than the file holds")
        form = f"<{count}{code}"
        return list(struct.unpack(form, self._take(struct.calcsize(form))))

    def _code(self, kind: int | float, key: str) -> str:
        if (code := NUMBERS.get(int(kind))) is None:
            raise self._wrong(f"{_short(key)} is of type {kind:,}, which GGUF does not define")
        return code

    def _name(self, what: str) -> str:
        length = int(self._number("Q"))
        if not 1 <= length <= MOST_NAME_BYTES:
            raise self._wrong(f"{what} is {length:,} bytes long")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self._wrong(f"{what} is not UTF-8") from None

    def _string(self, key: str) -> str:
        length = int(self._number("Q"))
        if length > self._left():
            raise self._wrong(f"{_short(key)} promises {length:,} bytes, more than the file holds")
        # A token may be a part of a character.
        return self._take(length).decode("utf-8", errors="replace")

    def _number(self, code: str) -> int | float:
        (number,) = struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))
        assert isinstance(number, int | float)
        return number

    def _take(self, count: int) -> bytes:
        if count > self._left():
            raise self._wrong(f"it ends within its header, at byte {self._size:,}; download it again")
        self._at += count
        return self._data[self._at - count : self._at]

    def _left(self) -> int:
        return self._size - self._at

    def _wrong(self, what: str) -> LoadError:
        return LoadError(f"cannot read {self._path}: {what}")


def _short(value: object) -> str:
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= 100 else text[:100] + "..."
