"""Speed of products of bf16 rows with weights of 16, 8 and 4 bits, by the compiled kernels.

Random weights of the layers of a Qwen3-0.6B, some of them so that weights come from memory, on one thread:
microseconds of processor time a layer of the model, the best of turns that alternate, so that another load on
the machine meets all; and how many times faster than bf16 that is. Each layer's product is a call of its own.
"""

import time
from ctypes import byref

ROWS = (1, 8, 32, 256)
SHAPES = ((1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024))
"""Inputs and outputs of queries, keys and values; attention's output; gate and up; down."""
NUM_LAYERS, NUM_TURNS = 4, 12


def main() -> None:
    import torch
    from torch import nn

    from sundog.runtime.native.few_bits import FewBitsLinear
    from sundog.runtime.native.library import kernels
    from sundog.runtime.native.linear import Packed, PackedLinear
    from sundog.runtime.native.parts import Parts
    from sundog.runtime.native.records import FORMATS, Linear

    library = kernels()
    if library is None:
        return
    parts = Parts(torch.bfloat16)

    def record(linear: nn.Linear, bits: int) -> Linear:
        kind = (
            PackedLinear(Packed(linear.weight, None, library))
            if bits == 16
            else FewBitsLinear.quantised(linear, bits, library)
        )
        return parts.linear(kind, None)

    def seconds(linears: list[Linear], rows: int) -> float:
        begin_s = time.process_time()
        for linear in linears:
            library.sundog_linear(
                byref(linear), x.data_ptr(), rows, out.data_ptr(), FORMATS[torch.bfloat16], 1
            )
        return (time.process_time() - begin_s) / NUM_LAYERS

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers: dict[int, list[Linear]] = {16: [], 8: [], 4: []}
    for num_in, num_out in SHAPES * NUM_LAYERS:
        linear = nn.Linear(num_in, num_out, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        for bits, records in layers.items():
            records.append(record(linear, bits))
    x, out = torch.randn(max(ROWS), 3072).bfloat16(), torch.empty(max(ROWS), 6144, dtype=torch.bfloat16)
    print(f"{'rows':>5} {'bf16':>10} {'int8':>10} {'int4':>10}   bf16/int8  bf16/int4")
    for rows in ROWS:
        turns = [[seconds(records, rows) for records in layers.values()] for _ in range(NUM_TURNS)]
        best = [1e6 * min(times) for times in zip(*turns, strict=True)]
        print(
            f"{rows:>5}" + "".join(f" {each:>7.0f} us" for each in best),
            f"  {best[0] / best[1]:>9.2f}  {best[0] / best[2]:>9.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
