"""Sampled tokens go to the host beside whatever the device computes next.

The last token of every request is also kept on the device: what a step samples, the next one computes.
"""

import torch
from torch import Tensor


def make_current(device: torch.device) -> None:
    """Make the device the current one of this thread: each thread has its own, GPU 0 at first."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


class LastTokens:
    """The last token of each row of the requests' tables. Reads and writes are in the order of the steps."""

    def __init__(self, device: torch.device) -> None:
        self._token = torch.zeros(0, dtype=torch.int64, device=device)

    def hold(self, num_rows: int) -> None:
        """Have room for this many rows; those that are there keep their tokens."""
        if num_rows > len(self._token):
            self._token = torch.cat((self._token, self._token.new_zeros(num_rows - len(self._token))))

    def read(self, row_N: Tensor) -> Tensor:
        return self._token[row_N]

    def write(self, row_R: Tensor, token_R: Tensor) -> None:
        """A row without a token, below 0, goes on with token 0."""
        self._token[row_R] = token_R.clamp(min=0)


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
