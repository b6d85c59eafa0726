"""Loading a model: its weights on the device, with our own attention.

Every folder that cannot be served ends in one `LoadError` that says why and what would help.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.facts import LoadError, first_line, read_facts
from runtime.support import check_supported

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = ("auto", "float32", "bfloat16", "float16")


def load_model(model_dir: str | Path, *, device: str = "cpu", dtype: str = "auto") -> "PreTrainedModel":
    """The model with its weights on `device` and our attention, ready for inference.

    Raises LoadError for a folder that cannot be served; takes as long as reading the weights.
    """
    folder = Path(model_dir)
    if dtype not in DTYPES:
        raise LoadError(f"dtype {dtype!r} is unknown: use one of {', '.join(DTYPES)}")
    read_facts(folder)
    import_torch()
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from runtime.attention import register

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise LoadError(f"--device {device}: torch {torch.__version__} sees no CUDA device")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the library's own gap
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # it would print a table before our line
    check_supported(folder)
    try:
        loaded: object = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=register(),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # the library raises a dozen kinds, each for a folder at fault
        raise LoadError(f"cannot load {folder}: {first_line(error)}") from error
    assert isinstance(loaded, tuple)
    model: PreTrainedModel
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise LoadError(
            f"{folder} lacks weights: {', '.join(missing[:3])}"
            + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        )
    model.to(device).eval().requires_grad_(False)  # type: ignore[arg-type]  # decorated upstream
    return model


def import_torch() -> None:
    """Import torch with OpenMP threads that wait without burning the cores they wait for.

    libgomp spins for milliseconds at the end of each parallel region by default. When anything
    else needs a core, such as the event loop, a region then costs a scheduler's time slice: on two
    busy cores a decode step of a 41 M Llama took 142 ms with its default and 34 with 1,000 spins,
    which cost next to nothing on idle ones. libgomp reads the variable once, when it is loaded.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    import torch  # noqa: F401
