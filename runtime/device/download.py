"""Sampled tokens on their way to the host, beside whatever the device computes next."""

import torch
from torch import Tensor


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream for downloads, on a device that has streams."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's gap


class Download:
    """Numbers [R] that come to the host; `wait` until they are there.

    On CUDA they are copied on a stream of their own, so that the next step neither waits for the copy nor
    holds it up.
    """

    __slots__ = ("_arrived", "_host", "_kept")

    def __init__(self, number_R: Tensor, stream: torch.cuda.Stream | None = None) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._kept = number_R  # until it has been copied
        self._host = number_R
        if stream is not None:
            self._host = torch.empty(number_R.shape, dtype=number_R.dtype, pin_memory=True)
            stream.wait_stream(torch.cuda.current_stream(number_R.device))
            with torch.cuda.stream(stream):
                self._host.copy_(number_R, non_blocking=True)
                self._arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's gap
                self._arrived.record(stream)

    def wait(self) -> list[int]:
        """The numbers. Lets other threads run while it waits."""
        if self._arrived is not None:
            self._arrived.synchronize()
        numbers: list[int] = self._host.tolist()
        return numbers
