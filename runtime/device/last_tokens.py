"""The last token of every request, kept on the device: what a step samples, the next one computes."""

import torch
from torch import Tensor


class LastTokens:
    """One token for each row of the requests' tables. Reads and writes are in the order of the steps."""

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
