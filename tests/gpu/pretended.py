"""CUDA device simulated on a CPU, to run what the engine does on a GPU without having one.

Its tensors say that they are on `cuda:0` and keep their numbers on the host. What a GPU would refuse is
refused: an operation that mixes both devices, a look at a number while a step must not wait, or while a
graph is recorded. A graph keeps the operations themselves and plays them on the same memory, whatever the
Python code above would do by then; a copy to the host has not arrived before its event is waited for.

Triton's kernels and FlashAttention are stood in for by their formulas, and no time is what a GPU takes.
"""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

CUDA = torch.device("cuda", 0)
FREE_BYTES = 2 << 30
aten = torch.ops.aten
LOOKS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten._unique2.default,
    aten.bincount.default,
}
"""Operations whose outcome, or the shape of it, the host has to wait for."""
COPIES = {aten.copy_.default, aten._to_copy.default}


class OnDevice(Tensor):
    """A tensor on the device; `inner` has its numbers, and shares its memory as it does."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]  # torch's gap
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=CUDA,
        )
        made.inner = inner
        return cast(OnDevice, made)

    def __repr__(self, **_: object) -> str:
        return f"OnDevice({self.inner!r})"

    def tolist(self) -> Any:
        DEVICE.wait("tolist")
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return DEVICE.run(func, args, kwargs or {})


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnDevice) else value


def _outer(value: Any) -> Any:
    return OnDevice(value) if isinstance(value, Tensor) else value


def _histogram(numbers: Tensor, *bins: Any) -> Tensor:
    """Of integers, which the CPU's own does not take."""
    return aten.histc.default(numbers.float(), *bins).to(numbers.dtype)  # type: ignore[no-any-return]


class Played(NamedTuple):
    """An operation of a graph: on which memory, and where its outcome belongs; None: where it is anyway."""

    func: Any
    args: Any
    kwargs: Any
    out: Any


class Device(TorchDispatchMode):
    """The device: where an operation runs, and what it may not do now."""

    def __init__(self) -> None:
        super().__init__()
        self.forbids_waiting = False
        self.tape: list[Played] | None = None
        self.arriving: list[tuple[Tensor, Tensor]] = []
        """Copies to the host that are under way: where to, and the numbers."""
        self.num_played = self.num_recorded = 0
        self.made_current: list[torch.device] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        given: list[Tensor] = []
        tree_map(lambda value: given.append(value) if isinstance(value, Tensor) else None, (args, kwargs))
        from_device = [each for each in given if isinstance(each, OnDevice)]
        asked = kwargs.get("device")
        wanted = None if asked is None else torch.device(asked)
        if not from_device and (wanted is None or wanted.type != "cuda"):
            kwargs.pop("pin_memory", None)
            return func(*args, **kwargs)
        on_host = [each for each in given if not isinstance(each, OnDevice) and each.dim()]
        if func in COPIES:
            return self._copy(func, args, kwargs, wanted)
        if on_host and from_device:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, cuda:0 and cpu")
        if func in LOOKS or _is_masked(func, args) or _is_looped(func, args):
            self.wait(str(func))
        if wanted is not None:
            kwargs = kwargs | {"device": torch.device("cpu")}
        kwargs.pop("pin_memory", None)
        return self._ran(func, args, kwargs)

    def wait(self, what: str) -> None:
        """The host waits for the device, if it may."""
        if self.forbids_waiting or self.tape is not None:
            raise RuntimeError(f"{what}: the host would wait for the device")

    def _copy(self, func: Any, args: Any, kwargs: Any, wanted: torch.device | None) -> Any:
        is_async = bool(
            kwargs.get("non_blocking") or (func is aten.copy_.default and len(args) > 2 and args[2])
        )
        source = args[1] if func is aten.copy_.default else args[0]
        if func is aten.copy_.default:
            to_device, from_device = isinstance(args[0], OnDevice), isinstance(source, OnDevice)
        else:
            from_device = isinstance(source, OnDevice)
            to_device = from_device if wanted is None else wanted.type == "cuda"
        if to_device != from_device:
            if self.tape is not None or not is_async:
                self.wait(f"{func} between the devices")
            if not to_device and is_async:
                assert func is aten.copy_.default, "into memory that is pinned"
                self.arriving.append((args[0], source.inner.clone()))
                return args[0].fill_(-1)
        if to_device:
            return self._ran(func, args, {**kwargs, **({"device": torch.device("cpu")} if wanted else {})})
        return func(*tree_map(_inner, args), **kwargs)

    def _ran(self, func: Any, args: Any, kwargs: Any) -> Any:
        inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
        computed = _histogram if func is aten.histc.default else func
        out = computed(*inner_args, **inner_kwargs)
        if self.tape is not None:
            is_view = any(returned.alias_info for returned in func._schema.returns)
            self.tape.append(Played(computed, inner_args, inner_kwargs, None if is_view else out))
        same: dict[int, Any] = {}  # an operation in place returns the tensor that it was given
        tree_map(lambda value: same.setdefault(id(_inner(value)), value), (args, kwargs))
        return tree_map(
            lambda value: (
                same[id(value)] if isinstance(value, Tensor) and id(value) in same else _outer(value)
            ),
            out,
        )

    def arrive(self) -> None:
        """All copies are there."""
        for there, numbers in self.arriving:
            there.copy_(numbers)
        self.arriving.clear()


DEVICE = Device()


def _is_masked(func: Any, args: Any) -> bool:
    """Whether an index is a mask, whose number of hits is not known to the host."""
    if func not in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
        return False
    return any(isinstance(index, Tensor) and index.dtype is torch.bool for index in args[1])


def _is_looped(func: Any, args: Any) -> bool:
    """Whether experts are multiplied one after another, by offsets that the host reads: all but bf16 is."""
    return func is aten._grouped_mm.default and args[0].dtype is not torch.bfloat16


class Stream:
    """Everything runs at once, in the order of the calls."""

    def __init__(self, *_: object) -> None:
        pass

    def wait_stream(self, _other: object) -> None:
        pass


class Event:
    def __init__(self, **_: object) -> None:
        pass

    def record(self, _stream: object) -> None:
        pass

    def synchronize(self) -> None:
        DEVICE.wait("an event")
        DEVICE.arrive()


class Graph:
    """Operations on memory that stays."""

    def __init__(self) -> None:
        self.tape: list[Played] = []

    def replay(self) -> None:
        DEVICE.num_played += 1
        with _disable_current_modes():
            for func, args, kwargs, out in self.tape:
                made = func(*args, **kwargs)
                if out is not None:
                    tree_map(
                        lambda kept, new: kept.copy_(new) if isinstance(kept, Tensor) else None, out, made
                    )


@contextmanager
def recording(graph: Graph, **_: object) -> Iterator[None]:
    DEVICE.tape = graph.tape
    DEVICE.num_recorded += 1
    try:
        yield
    finally:
        DEVICE.tape = None


@contextmanager
def nothing(*_: object, **__: object) -> Iterator[None]:
    yield


def set_sync_debug_mode(mode: str | int) -> None:
    DEVICE.forbids_waiting = mode in ("error", 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """torch's fused call asks the device which kernel to take: this is its formula."""
    if not isinstance(q, OnDevice):
        return PLAIN_ATTENTION(q, k, v, **options)
    group = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = q @ k.transpose(-1, -2) * options["scale"]
    if options.get("is_causal"):
        rows = torch.arange(q.shape[-2], device=q.device)
        scores = scores.masked_fill(rows[:, None] < rows[None, : k.shape[-2]], float("-inf"))
    if options.get("attn_mask") is not None:
        mask = options["attn_mask"]
        hidden = ~mask if mask.dtype is torch.bool else None
        scores = (
            scores + mask if hidden is None else scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        )
    return scores.softmax(-1).to(v.dtype) @ v


def _tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
    made = PLAIN_TENSOR(data, **options)
    return made if device is None else made.to(device)


PLAIN_TENSOR = torch.tensor
PLAIN_ATTENTION = F.scaled_dot_product_attention


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """The formula of torch 2.11's call, with what its kernel asks of its tensors."""
    for each in (query, key, value):
        assert isinstance(each, OnDevice) and each.dtype in (torch.float16, torch.bfloat16)
        assert each.stride(-1) == 1
    assert isinstance(cu_seq_q, OnDevice) and isinstance(cu_seq_k, OnDevice)
    assert cu_seq_q.dtype is cu_seq_k.dtype is torch.int32
    assert cu_seq_q.is_contiguous() and cu_seq_k.is_contiguous()
    out = torch.empty_like(query.inner)
    starts_q, starts_k = cu_seq_q.inner.tolist(), cu_seq_k.inner.tolist()
    assert starts_q[-1] == len(query) and starts_k[-1] == len(key)
    left, right = window_size
    assert right == 0
    for number in range(len(starts_q) - 1):
        rows, seen = slice(*starts_q[number : number + 2]), slice(*starts_k[number : number + 2])
        q, k, v = query.inner[rows].float(), key.inner[seen].float(), value.inner[seen].float()
        assert 0 < len(q) <= max_q and len(k) <= max_k
        group = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * scale
        ahead = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))[None]
        unseen = ahead < 0 if left < 0 else (ahead < 0) | (ahead > left)
        weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1)).to(out.dtype)
    return OnDevice(out)


GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>)
}
"""


@cache
def _guard() -> None:
    """A build of torch for CPUs refuses to enter a CUDA device; from now on it enters and does nothing."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler: no device can be pretended")
    home = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "guard.cpp"), Path(folder, "guard.so")
        source.write_text(GUARD)
        options = ["-std=c++20", "-shared", "-fPIC", f"-I{home / 'include'}", f"-L{home / 'lib'}", "-lc10"]
        subprocess.run([compiler, source, "-o", library, *options], check=True)
        ctypes.CDLL(str(library))


@contextmanager
def pretended() -> Iterator[Device]:
    """The device is there."""
    import torch.nn.attention.varlen as torch_varlen

    from sundog.runtime.attention import decoding, varlen
    from sundog.runtime.model import attention_backend as means
    from sundog.runtime.model import loader

    def by_kernel(*args: Any, num_splits: int | None = None, **special: Any) -> Tensor:
        return decoding.by_gathering(*args, **special)

    read_plainly = loader._read

    def read(*args: Any) -> Any:
        with _disable_current_modes(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                torch, "tensor", PLAIN_TENSOR
            )  # else the library leaves buffers without their numbers
            return read_plainly(*args)

    values: dict[str, Any] = {
        "is_available": lambda: True,
        "_lazy_init": lambda: None,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: SimpleNamespace(multi_processor_count=132),
        "get_device_name": lambda *_: "a device that is pretended",
        "current_stream": lambda *_: Stream(),
        "graph_pool_handle": lambda: None,
        "mem_get_info": lambda *_: (FREE_BYTES, FREE_BYTES),
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "set_sync_debug_mode": set_sync_debug_mode,
        "get_sync_debug_mode": lambda: 2 if DEVICE.forbids_waiting else 0,
        "set_device": DEVICE.made_current.append,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": recording,
        "stream": nothing,
    }
    for name in ("empty_cache", "reset_peak_memory_stats", "synchronize"):
        values[name] = lambda *_: None
    _guard()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch, "tensor", _tensor)
        patch.setattr(F, "scaled_dot_product_attention", _attend)
        patch.setattr(torch_varlen, "varlen_attn", varlen_attn)
        patch.setattr(means, "by_kernel", by_kernel)
        patch.setattr(
            loader, "find_spec", lambda _name: None
        )  # no weights straight to the device, by threads
        patch.setattr(loader, "_read", read)
        # Views of tensors of inference mode know no subclasses; without gradients their numbers are the same.
        patch.setattr(torch.inference_mode, "__enter__", torch.no_grad.__enter__)
        patch.setattr(torch.inference_mode, "__exit__", torch.no_grad.__exit__)
        varlen.parameters.cache_clear()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            with DEVICE:
                yield DEVICE
        finally:
            varlen.parameters.cache_clear()
            torch.__future__.set_overwrite_module_params_on_conversion(False)
            DEVICE.forbids_waiting, DEVICE.num_played, DEVICE.num_recorded = False, 0, 0
            DEVICE.made_current.clear()
            DEVICE.arriving.clear()
