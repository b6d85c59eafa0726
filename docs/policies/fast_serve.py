"""FastServe (Wu et al., arXiv:2305.05920, section 4.1): `--policy docs/policies/fast_serve.py:FastServe`."""

from dataclasses import dataclass

from sundog import Policy, Rank, Request, View


@dataclass(frozen=True)
class FastServe(Policy):
    """Skip-join MLFQ: the `batch` answers of the lowest levels run, others pause and keep their blocks."""

    pauses = True
    batch: int = 32
    quantum: int = 16
    prompt_tokens_per_level: int = 512

    def rank(self, request: Request, view: View) -> Rank:
        skipped = request.submit.num_prompt_tokens // self.prompt_tokens_per_level
        return Rank(max(skipped, view.num_output_tokens(request) // self.quantum).bit_length())

    def new_memory(self) -> tuple[dict[str, list[int]], list[int]]:
        return {}, [0] * 65  # the level of each running request, and the steps left there; how many on each

    def admitted(self, request: Request, view: View) -> None:
        self.finished(request, view)
        level = self.rank(request, view).value
        left = (self.quantum << level) - view.num_output_tokens(request)
        view.memory[0][request.request_id] = [level, left]
        view.memory[1][level] += 1

    def sampled(self, request: Request, view: View) -> None:
        if place := view.memory[0].get(request.request_id):
            place[1] -= 1
            if place[1] == 0:
                self.admitted(request, view)

    def finished(self, request: Request, view: View) -> None:
        view.memory[1][view.memory[0].pop(request.request_id, [-1])[0]] -= 1  # the last level is for none

    preempted = finished

    def quota(self, request: Request, view: View) -> int | None:
        running, sizes = view.memory
        level = (running.get(request.request_id) or self.rank(request, view))[0]
        return 0 if sum(sizes[:level]) >= self.batch else None
