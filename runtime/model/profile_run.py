"""GPU memory of the largest step besides weights and cache, measured by computing one.

Shapes: R sampling rows, V tokens of the vocabulary.
"""

import numpy as np
import torch
from transformers import PreTrainedModel

from sundog.runtime.attention.paged_cache import LayerShape
from sundog.runtime.model.graphs import sizes_up_to
from sundog.runtime.model.model import probe_layers
from sundog.runtime.sampling.choices import Choices, SamplingColumns
from sundog.runtime.sampling.sampler import pick

RECORDING_BYTES = 16 << 20
"""Bytes of a graph of a thousand launches besides shared tensors, rounded up."""


def measured(
    model: PreTrainedModel, max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int
) -> tuple[list[LayerShape], int]:
    """Return the layers, and the bytes of the largest step.

    The step has the most tokens, samples for the most requests with a filter that sorts the whole vocabulary,
    and copies the keys of one layer side by side. Recordings of decodes, with their logits, are added.
    """
    device = model.device
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    layers = probe_layers(model, max_num_batched_tokens, max_num_seqs)
    vocab_size = model.config.get_text_config().vocab_size
    logits_bytes = max_num_seqs * vocab_size * model.dtype.itemsize
    _sample_all(model, max_num_seqs, vocab_size)
    step_bytes = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    copied_bytes = (max_model_len + max_num_batched_tokens) * max(shape.token_bytes for shape in layers)
    recorded_bytes = logits_bytes + len(sizes_up_to(max_num_seqs)) * RECORDING_BYTES
    return layers, step_bytes + copied_bytes + recorded_bytes


@torch.inference_mode()
def _sample_all(model: PreTrainedModel, num_rows: int, vocab_size: int) -> None:
    logits_RV = torch.zeros(num_rows, vocab_size, dtype=model.dtype, device=model.device)
    ones_R = np.ones(num_rows, np.float32)
    none_R = np.zeros(num_rows, np.int64)
    choices = Choices(ones_R, none_R, top_p_R=0.9 * ones_R, min_p_R=0 * ones_R, uniform_R=np.zeros(num_rows))
    pick(logits_RV, choices, SamplingColumns.of(choices, model.device))
