"""Loading of a model: its weights on the device, with our own attention.

Every folder that cannot be served ends in one `LoadError` with the reason and a remedy.
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sundog.runtime.checkpoint.facts import LoadError, first_line, read_facts
from sundog.runtime.checkpoint.gguf.folder import is_gguf, read_gguf
from sundog.runtime.checkpoint.support import cannot_load, check_supported, choose_rotary, read_config
from sundog.runtime.checkpoint.weights import check_floats, readable_by_library, stored_tensors
from sundog.runtime.host.memory import prepare_memory, ran_out_of_memory

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.models.auto.auto_factory import _LazyAutoMapping

_LOG = logging.getLogger(__name__)
DTYPES = ("auto", "float32", "bfloat16", "float16")


def load_model(
    model_dir: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    max_model_len: int = 0,
    sharing: "DistributedConfig | None" = None,
    leaves_out: bool = False,
) -> "PreTrainedModel":
    """Load the model with its weights on `device` and our attention, ready for inference.

    `max_model_len` is the longest context of requests. With `sharing` the library reads this process's share
    of the weights, and hooks what its plan names. With `leaves_out` a GGUF file's matrices are left to
    `pack_weights` if the weights are in bfloat16. Raises LoadError for a folder that cannot be served; takes
    as long as reading the weights.
    """
    folder = Path(model_dir)
    read_facts(folder)
    import_torch()
    check_supported(folder)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    from sundog.runtime.attention import register

    config = read_config(folder)
    choose_rotary(config, max_model_len)
    model, unused = _loaded(
        folder, config, device, dtype, MODEL_FOR_CAUSAL_LM_MAPPING, register(), sharing, leaves_out
    )
    if unused:
        _LOG.warning("%s: the model has no place for %s", folder, _listed(unused))
    return model


def load_bare(folder: Path, *, device: str = "cpu", dtype: str = "auto") -> "PreTrainedModel":
    """Load the model without a head, with the library's own attention; its output is its last layer's states.

    Raises as `load_model` does.
    """
    import_torch()
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    model, _heads = _loaded(folder, read_config(folder), device, dtype, MODEL_MAPPING, None)
    return model


def _loaded(
    folder: Path,
    config: "PreTrainedConfig",
    device: str,
    dtype: str,
    classes: "_LazyAutoMapping",
    attention: str | None,
    sharing: "DistributedConfig | None" = None,
    leaves_out: bool = False,
) -> tuple["PreTrainedModel", list[str]]:
    from transformers.utils import logging as library

    if dtype not in DTYPES:
        raise LoadError(f"dtype {dtype!r} is unknown: use one of {', '.join(DTYPES)}")
    device = chosen_device(device)
    library.disable_progress_bar()  # type: ignore[no-untyped-call]  # the library's own gap
    library.set_verbosity_error()  # type: ignore[no-untyped-call]  # it would print a table before our line
    try:
        model, found = _read(folder, config, device, dtype, classes, attention, sharing, leaves_out)
        model.to(device).eval().requires_grad_(False)  # type: ignore[arg-type]  # decorated upstream
    except LoadError:
        raise
    except Exception as error:  # the library raises a dozen kinds, each for a folder at fault
        if ran_out_of_memory(error):
            raise LoadError(
                f"not enough memory on {device} for the weights of {folder}: {first_line(error)}; free some,"
                " or serve a smaller model"
            ) from error
        raise cannot_load(folder, error) from error
    _check_found(folder, found)
    return model, sorted(found["unexpected_keys"])


def chosen_device(device: str) -> str:
    """Return the device; `auto` is a GPU if torch sees one. LoadError if there is no such device."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise LoadError(
            f"--device {device}: torch {torch.__version__} sees no CUDA device; give --device cpu,"
            " or install a build of torch for this machine's driver"
        )
    return device


class Found(TypedDict):
    """The library's report on the weights it read, with shapes in the file and in the model."""

    missing_keys: set[str]
    unexpected_keys: set[str]
    mismatched_keys: set[tuple[str, Sequence[int], Sequence[int]]]


def _read(
    folder: Path,
    config: "PreTrainedConfig",
    device: str,
    dtype: str,
    classes: "_LazyAutoMapping",
    attention: str | None,
    sharing: "DistributedConfig | None",
    leaves_out: bool,
) -> tuple["PreTrainedModel", Found]:
    """Return the model, and the library's report; quantised weights are dequantised first."""
    import torch

    from sundog.runtime.checkpoint.quantized import read_dequantised

    stored = {} if is_gguf(folder) else stored_tensors(folder)
    settings = getattr(config, "quantization_config", None)
    if is_gguf(folder):
        chosen = str(config.dtype).removeprefix("torch.") if dtype == "auto" else dtype
        weights = read_gguf(folder, config, getattr(torch, chosen), leaves_out=leaves_out)
    elif settings is None:
        check_floats(stored)
        weights, chosen = None, dtype
    else:
        settings = settings if isinstance(settings, dict) else settings.to_dict()
        own = str(config.dtype or "bfloat16").removeprefix("torch.")
        chosen = own if dtype == "auto" else dtype
        weights = read_dequantised(folder, stored, settings, getattr(torch, chosen))
        del config.quantization_config
    if type(config) not in classes:
        raise LoadError(f"{folder} ({config.model_type}) is not supported: transformers has no such model")
    built = classes[type(config)]
    assert isinstance(built, type), "one class for each configuration"
    more: dict[str, object] = {}
    if "add_pooling_layer" in signature(built).parameters:
        more["add_pooling_layer"] = False
    # Straight to the device, without a copy of all weights on the host.
    if sharing is not None:
        more["distributed_config"] = sharing
    elif device != "cpu" and find_spec("accelerate"):
        more["device_map"] = device
    with readable_by_library(folder) as source:
        loaded: object = built.from_pretrained(
            source if weights is None else None,
            config=config,
            dtype=chosen,
            state_dict=weights,
            attn_implementation=attention,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **more,
        )
    assert isinstance(loaded, tuple)
    return loaded


def _check_found(folder: Path, found: Found) -> None:
    if missing := sorted(found["missing_keys"]):
        raise LoadError(f"{folder} lacks weights: {_listed(missing)}")
    for name, has, wanted in sorted(found["mismatched_keys"], key=str):
        raise LoadError(
            f"{folder}: {name} has the shape {_shape(has)}, and the model of config.json {_shape(wanted)}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def import_torch() -> None:
    """Import torch with OpenMP threads that wait without burning the cores they wait for.

    libgomp spins for milliseconds at the end of each parallel region by default. When anything else needs a
    core, such as the event loop, a region then costs a scheduler's time slice: on two busy cores a decode
    step of a 41 M Llama took 142 ms with its default and 34 with 1,000 spins, which cost next to nothing on
    idle ones. libgomp reads the variable once, when it is loaded.

    Raises ModuleNotFoundError without torch, and LoadError if its libraries cannot be loaded.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        prepare_memory()
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise
    except (ImportError, OSError) as error:
        raise LoadError(
            f"torch is installed, but cannot be loaded: {first_line(error)}: give it more memory (its builds"
            " for GPUs map 2 GB and more), or install it again"
        ) from error
