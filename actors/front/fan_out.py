"""The choices of one prompt: `n` requests of the engine's, which end, fail and are cancelled as one answer.

A choice is an ordinary request. All go to one replica in one step, where the first computes the prompt's full
blocks and the others find them in the prefix cache: what each computes again is the rest of the prompt, from
one token to a whole block.
"""

from dataclasses import replace

from actors.core.request import Submit


def choice_ids(request_id: str, n: int) -> tuple[str, ...]:
    """The ids of a request's choices: its own if there is one."""
    return (request_id,) if n == 1 else tuple([f"{index}_{request_id}" for index in range(n)])


def ids_of(request_id: str, n: int) -> tuple[str, ...]:
    """All ids that a request takes: its own, and those of several choices."""
    return (request_id,) if n == 1 else (request_id, *choice_ids(request_id, n))


def choices_of(submit: Submit, n: int) -> tuple[Submit, ...]:
    """`submit` once for each choice: the seed of a choice is the first one's plus its index."""
    if n == 1:
        return (submit,)
    seed = submit.sampling.seed
    return tuple(
        replace(
            submit,
            request_id=request_id,
            sampling=submit.sampling if seed is None else replace(submit.sampling, seed=seed + index),
        )
        for index, request_id in enumerate(choice_ids(submit.request_id, n))
    )


class Families:
    """Of each request with several choices, those that have not ended."""

    __slots__ = ("_parent_of", "_unfinished")

    def __init__(self) -> None:
        self._unfinished: dict[str, list[str]] = {}
        self._parent_of: dict[str, str] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._unfinished

    def begin(self, request_id: str, choice_ids: list[str]) -> None:
        """Note a request's choices; one alone is no family."""
        if len(choice_ids) > 1:
            self._unfinished[request_id] = choice_ids
            self._parent_of.update(dict.fromkeys(choice_ids, request_id))

    def unfinished(self, request_id: str) -> tuple[str, ...]:
        """The choices of a request, or itself if it has one."""
        return tuple(self._unfinished.get(request_id, (request_id,)))

    def end(self, choice_id: str) -> None:
        """Forget a choice, and its request with the last one."""
        parent = self._parent_of.pop(choice_id, None)
        if parent is not None:
            self._unfinished[parent].remove(choice_id)
            if not self._unfinished[parent]:
                del self._unfinished[parent]
