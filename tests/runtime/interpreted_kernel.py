"""The decode kernel against the plain formula; runs in a process with TRITON_INTERPRET=1."""

import itertools

import torch
from triton.runtime import interpreter

from sundog.runtime.attention.decoding import Decodes, by_gathering, by_kernel

SHAPES = ((6, 2, 8, 5, 4), (4, 4, 24, 16, 16))
DTYPES = {torch.float32: 1e-5, torch.float16: 5e-3}
SPECIAL = ((None, False), (2.0, False), (None, True))


def patch_interpreter() -> None:
    """numpy turns no array of one number into an integer any more, and the interpreter asks it to."""
    original = interpreter._patch_lang_tensor

    def patched(tensor, scope):  # type: ignore[no-untyped-def]  # the interpreter's own
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def check(dtype: torch.dtype, window: int | None, softcap: float | None, has_sinks: bool) -> None:
    for (heads, key_heads, key_width, value_width, block_size), splits in itertools.product(SHAPES, (1, 4)):
        torch.manual_seed(0)
        keys = torch.randn(40, block_size, key_heads, key_width).to(dtype)
        values = torch.randn(40, block_size, key_heads, value_width).to(dtype)
        table = (torch.randperm(39)[:36] + 1).view(3, 12).int()
        num_keys = torch.tensor([1, 17, 12 * block_size - 1], dtype=torch.int32)
        q, sinks = torch.randn(3, heads, key_width).to(dtype), torch.randn(heads) if has_sinks else None
        special = {"scaling": 0.3, "window": window, "softcap": softcap, "sinks_H": sinks}
        out = by_kernel(Decodes(table, num_keys), q, keys, values, **special, num_splits=splits)  # type: ignore[arg-type]
        exact = (q.float(), keys.float(), values.float())
        right = by_gathering(Decodes(table, num_keys), *exact, **special)  # type: ignore[arg-type]
        assert (out.float() - right).norm() <= DTYPES[dtype] * right.norm(), (dtype, special, splits)


if __name__ == "__main__":
    patch_interpreter()
    for dtype, window, (softcap, has_sinks) in itertools.product(DTYPES, (None, 7), SPECIAL):
        check(dtype, window, softcap, has_sinks)
