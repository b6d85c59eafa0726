"""Speed of the matrix products of one layer, in GFLOP per second of CPU time, beside torch's own in float32.

The shapes are those of Qwen3-0.6B, on one thread. The ways take turns, and the quickest round of each counts:
`python -m tests.bench products`. One row also says how many bytes of weights it reads a second, beside what
reading memory alone comes to.
"""

import time
from collections.abc import Callable
from ctypes import byref

SHAPES = ((1024, 4096), (2048, 1024), (1024, 3072), (1024, 3072), (3072, 1024))
ROWS = (1, 2, 3, 4, 8, 12, 16, 32, 64, 128, 512)
NUM_LAYERS, ROUNDS = 4, 5
"""The weights of some layers are larger than any cache of one thread."""


def main() -> None:
    import torch
    from torch import nn

    from sundog.runtime.native.library import kernels
    from sundog.runtime.native.linear import Packed
    from sundog.runtime.native.records import FORMATS

    library = kernels()
    if library is None:
        return
    torch.manual_seed(0)
    torch.set_num_threads(1)
    flops_a_row = sum(2 * num_in * num_out for num_in, num_out in SHAPES) * NUM_LAYERS
    plain = [nn.Linear(i, o, bias=False).requires_grad_(False) for i, o in SHAPES * NUM_LAYERS]
    ways: dict[str, Callable[[int], object]] = {}

    def of_torch(rows: int) -> None:
        for linear in plain:
            linear(inputs[linear.in_features][:rows])

    ways["torch"] = of_torch
    inputs = {num_in: torch.randn(max(ROWS), num_in) for num_in, _ in SHAPES}
    for dtype, number in FORMATS.items():
        packed = [Packed(linear.weight.to(dtype), None, library) for linear in plain]
        of_format = {num_in: x.to(dtype) for num_in, x in inputs.items()}
        out = torch.empty(max(ROWS), 4096, dtype=dtype)

        def ours(rows: int, packed=packed, given=of_format, out=out, number=number) -> None:  # type: ignore[no-untyped-def]
            for each in packed:
                at = given[each.record.num_in].data_ptr()
                library.sundog_linear(byref(each.record), at, rows, out.data_ptr(), number, 1)

        ways[str(dtype).removeprefix("torch.")] = ours

    names = list(ways)
    print(f"{'rows':>5}" + "".join(f"{name:>10}" for name in names) + "   GFLOP/s of one thread")
    for rows in ROWS:
        best = dict.fromkeys(names, float("inf"))
        for _ in range(ROUNDS + 1):
            for name, way in ways.items():
                begin_s = time.process_time()
                way(rows)
                best[name] = min(best[name], time.process_time() - begin_s)
        print(f"{rows:5}" + "".join(f"{rows * flops_a_row / best[name] / 1e9:10.1f}" for name in names))
        if rows == 1:
            bytes_read = {"torch": 4, "float32": 4, "bfloat16": 2, "float16": 2}
            speeds = (flops_a_row / 2 * bytes_read[name] / best[name] / 1e9 for name in names)
            print("     " + "".join(f"{speed:10.1f}" for speed in speeds) + "   GB/s of weights")
    memory = torch.ones(1 << 28)
    begin_s, rounds = time.process_time(), 3
    for _ in range(rounds):
        memory.sum()
    print(f"reading memory alone: {rounds * memory.nbytes / (time.process_time() - begin_s) / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
