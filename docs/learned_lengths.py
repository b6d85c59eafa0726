"""Memory: `--policy docs/learned_lengths.py:LearnedLengths`."""

from sundog import Policy, Rank, Request, View


class LearnedLengths(Policy):
    """The tenant whose answers have been the shortest so far goes first."""

    def new_memory(self) -> dict[str | None, tuple[int, int]]:
        return {}

    def finished(self, request: Request, view: View) -> None:
        tokens, answers = view.memory.get(request.submit.tenant, (0, 0))
        view.memory[request.submit.tenant] = (tokens + view.num_output_tokens(request), answers + 1)

    def rank(self, request: Request, view: View) -> Rank:
        tokens, answers = view.memory.get(request.submit.tenant, (0, 1))
        return Rank(tokens / answers, until_memory_changes=True)

    def rank_key(self, request: Request, view: View) -> tuple[str | None]:
        return (request.submit.tenant,)
