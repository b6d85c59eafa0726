"""Download of sampled tokens to the host while the device computes the next step.

Each request's last token also stays on the device, as input of the next step.
"""

import torch
from torch import Tensor


def make_current(device: torch.device) -> None:
    """Make the device the current one of this thread: each thread has its own, GPU 0 at first."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


class LastTokens:
    """Last token of each row of the requests' tables. Reads and writes are in the order of the steps."""

    def __init__(self, device: torch.device) -> None:
        self._token = torch.zeros(0, dtype=torch.int64, device=device)

    def hold(self, num_rows: int) -> None:
        """Keep the last tokens of this many rows; existing rows keep theirs."""
        if num_rows > len(self._token):
            self._token = torch.cat((self._token, self._token.new_zeros(num_rows - len(self._token))))

    def read(self, row_N: Tensor) -> Tensor:
        return self._token[row_N]

    def write(self, row_R: Tensor, token_R: Tensor) -> None:
        """Store the rows' tokens; a token below 0 means none and becomes token 0."""
        self._token[row_R] = token_R.clamp(min=0)


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a stream for downloads, on a device with streams."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's gap


class Download:
    """Download of numbers [R] to the host; `wait` returns them.

    On CUDA they are copied on a stream of their own, so that the next step neither waits for the copy nor
    delays it.
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
        """Return the numbers. Other threads run while it waits."""
        if self._arrived is not None:
            self._arrived.synchronize()
        numbers: list[int] = self._host.tolist()
        return numbers
