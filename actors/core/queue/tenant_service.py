"""Service of each tenant: virtual token counters, updated in O(what changed).

A counter is `w_p * prompt tokens admitted + w_q * output tokens + lift`. A tenant whose first request begins
to wait is lifted to the least served waiting tenant, or, if none waits, to the one that left last: absence
earns no credit (Sheng et al., OSDI 2024, algorithm 2).

Law: at any moment the counts equal those of counting token by token. Members of the lockstep get one token
each with every step, so a tenant's count is `members * finished steps` plus a constant; a member that joins
while earlier steps are in flight gets no token from those. Counts are whole numbers, so that the order of
additions cannot change a sum.
"""

from dataclasses import field
from typing import Protocol

from sundog.actors.core.records import dataclass
from sundog.actors.core.request import Request

Tenant = str | None


class Steps(Protocol):
    """Source of the number of finished steps, which the Lockstep is."""

    done: int


@dataclass(slots=True)
class Account:
    """Counts of one tenant."""

    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    """Output tokens, excluding those that `num_members` get with every finished step."""
    num_members: int = 0
    early: list[int] = field(default_factory=list)
    """Last step without a token for each member that joined during earlier steps; ascending."""
    num_waiting: int = 0
    lift: float = 0.0


class TenantService:
    """Accounts of one scheduler's tenants, with weights for prompt and output tokens."""

    __slots__ = ("_accounts", "_input_weight", "_last_to_leave", "_output_weight", "_steps", "_waiting")

    def __init__(self, weights: tuple[float, float], steps: Steps) -> None:
        self._input_weight, self._output_weight = weights
        self._steps = steps
        self._accounts: dict[Tenant, Account] = {}
        self._waiting: dict[Tenant, None] = {}
        self._last_to_leave: Tenant = None

    def of(self, tenant: Tenant) -> float:
        """Return the tenant's counter, in weighted tokens."""
        account = self._accounts.get(tenant)
        return 0.0 if account is None else self._raw(account) + account.lift

    def enter(self, request: Request) -> None:
        """Record that a request begins to wait. O(waiting tenants) if it is the only one of its tenant."""
        tenant = request.submit.tenant
        account = self._accounts.setdefault(tenant, Account())
        account.num_waiting += 1
        if tenant not in self._waiting:
            others = self._waiting or (self._last_to_leave,)
            floor = min(map(self.of, others))
            account.lift = max(account.lift, floor - self._raw(account))
            self._waiting[tenant] = None

    def leave(self, request: Request) -> None:
        """Record that a request stops waiting."""
        tenant = request.submit.tenant
        account = self._accounts[tenant]
        account.num_waiting -= 1
        if account.num_waiting == 0:
            del self._waiting[tenant]
        self._last_to_leave = tenant

    def admit(self, request: Request) -> None:
        """Charge the prompt of a request that runs for the first time."""
        self._accounts[request.submit.tenant].num_prompt_tokens += request.submit.num_prompt_tokens

    def sample(self, request: Request) -> None:
        """Count a token of a request outside the lockstep."""
        self._accounts[request.submit.tenant].num_output_tokens += 1

    def join(self, request: Request) -> None:
        """Add the request to its tenant's lockstep members; it gets a token from step `joined` on."""
        account, before = self._accounts[request.submit.tenant], request.joined - 1
        account.num_members += 1
        account.num_output_tokens -= before
        if before > self._steps.done:
            account.early.append(before)

    def settle(self, request: Request) -> None:
        """Remove the request from its tenant's lockstep members and settle its tokens."""
        account, before = self._accounts[request.submit.tenant], request.joined - 1
        account.num_members -= 1
        account.num_output_tokens += max(self._steps.done, before)
        if before > self._steps.done:
            account.early.remove(before)

    def _raw(self, account: Account) -> float:
        done, early = self._steps.done, account.early
        while early and early[0] <= done:
            early.pop(0)
        outputs = account.num_output_tokens + account.num_members * done + sum(early) - len(early) * done
        return self._input_weight * account.num_prompt_tokens + self._output_weight * outputs
