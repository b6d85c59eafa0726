"""FastServe (Wu et al., arXiv:2305.05920, section 4.1): `--policy docs/policies/fast_serve.py:FastServe`."""

from dataclasses import dataclass
from typing import ClassVar

from actors.core.policies import Policy, Rank, Request, View


@dataclass(frozen=True)
class FastServe(Policy):
    """Skip-join MLFQ: the `batch` answers of the lowest levels run, others pause and keep their blocks."""

    pauses: ClassVar[bool] = True
    batch: int = 32
    quantum: int = 16
    prompt_tokens_per_level: int = 512

    def level(self, request: Request, view: View) -> int:
        skipped = request.submit.num_prompt_tokens // self.prompt_tokens_per_level
        return max(skipped.bit_length(), (view.num_output_tokens(request) // self.quantum).bit_length())

    def new_memory(self) -> dict[str, int]:
        return {}  # the level of each running request

    def admitted(self, request: Request, view: View) -> None:
        view.memory[request.request_id] = self.level(request, view)

    sampled = admitted

    def finished(self, request: Request, view: View) -> None:
        view.memory.pop(request.request_id, None)

    def rank(self, request: Request, view: View) -> Rank:
        return Rank(self.level(request, view))

    def quota(self, request: Request, view: View) -> int | None:
        own = self.level(request, view)
        ahead = sum(level < own for name, level in view.memory.items() if name in view.running)
        return 0 if ahead >= self.batch else None
