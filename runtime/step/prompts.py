"""The tokens that a backend knows of requests which have not caught up with them.

Once a request decodes, each of its tokens is in the books of `requests.py` as its last one.
"""

import numpy as np

from actors.core.batch import Admission, Chunk
from runtime.step.scoring import Scored
from runtime.step.step import Ints


class Prompts:
    """The known tokens of each request from its admission until it decodes."""

    def __init__(self) -> None:
        self._known: dict[str, Ints] = {}
        self._num_top: dict[str, int] = {}
        """How many likeliest tokens are wanted beside each of the prompt, of requests that want any."""

    @property
    def has_scored(self) -> bool:
        """Whether any request wants log probabilities of its prompt."""
        return bool(self._num_top)

    def admit(self, admission: Admission) -> None:
        """Raises ValueError for a request that comes without its tokens."""
        request_id = admission.request_id
        if admission.token_ids is None or len(admission.token_ids) != admission.num_tokens:
            raise ValueError(f"request {request_id} comes without its {admission.num_tokens} tokens")
        self._known[request_id] = np.array(admission.token_ids, np.int64)
        wanted = admission.sampling.prompt_logprobs
        if wanted is not None and admission.num_tokens == admission.num_prompt_tokens:
            self._num_top[request_id] = wanted  # with its first token it has had them all

    def caught_up(self, request_id: str) -> None:
        """The request decodes from now on."""
        del self._known[request_id]

    def forget(self, request_id: str) -> None:
        self._known.pop(request_id, None)
        self._num_top.pop(request_id, None)

    def tokens(self, chunk: Chunk, first: int) -> Ints:
        """The tokens of a chunk that begins with the request's token `first`."""
        known = self._known[chunk.request_id]
        end = first + chunk.num_tokens
        if end > len(known) or chunk.samples != (end == len(known)):
            raise ValueError(
                f"request {chunk.request_id}: {chunk} from token {first} does not fit its {len(known)} tokens"
            )
        return known[first:end]

    def scored(self, chunk: Chunk, first: int, row: int) -> Scored | None:
        """The prompt tokens that a chunk predicts, which begins at `row` of the step with token `first`.

        Each token's next, but for the last of the prompt.
        """
        num_top = self._num_top.get(chunk.request_id)
        if num_top is None:
            return None
        tokens = self._known[chunk.request_id][first + 1 : first + 1 + chunk.num_tokens]
        return Scored(chunk.request_id, row, first + 1, tuple(tokens.tolist()), num_top)
