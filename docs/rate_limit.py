"""Refusals: `--policy docs/rate_limit.py:RateLimit:per_minute=30`."""

from dataclasses import dataclass

from sundog import Policy, Refusal, Request, View


@dataclass(frozen=True)
class RateLimit(Policy):
    """A tenant may send `per_minute` requests a minute, evenly: what comes sooner is refused."""

    per_minute: float = 60

    def new_memory(self) -> dict[str | None, float]:
        return {}

    def refuse(self, request: Request, view: View) -> Refusal | None:
        due_s = view.memory.get(request.submit.tenant, view.now_s)
        if due_s > view.now_s:
            return Refusal(f"more than {self.per_minute:g} requests a minute", due_s - view.now_s)
        view.memory[request.submit.tenant] = view.now_s + 60 / self.per_minute
        return None
