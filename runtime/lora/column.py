"""Which adapter each request has, as a column beside the backend's others; 0 is none."""

from collections.abc import Sequence

import numpy as np

from actors.core.params.adapter import Adapter
from runtime.step.step import Ints, Part


class AdapterColumn:
    """The numbers of the requests' adapters, by row; adapters are numbered from 1 in the order of `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._number = np.zeros(64, np.int64)

    def set(self, row: int, adapter: Adapter | None) -> None:
        """Note the adapter of the request that is now in `row`."""
        if row >= len(self._number):
            self._number = np.resize(self._number, 2 * row)
        self._number[row] = 0 if adapter is None else self._numbers[adapter.name]

    def of_tokens(self, parts: Sequence[Part]) -> Ints | None:
        """The number of each token's adapter [T]; None in a server without adapters."""
        if not (self._numbers and parts):
            return None
        return np.concatenate([np.repeat(self._number[part.row_N], part.num_queries) for part in parts])
