"""What a policy may look at beside the requests themselves: facts, all of them of the past."""

from actors.core.kv_cache import KVCache
from actors.core.lockstep import Lockstep
from actors.core.request import Request, Status


class View:
    """A read-only window on one scheduler's state, exact at any moment between two steps."""

    __slots__ = ("_kv", "_lockstep")

    def __init__(self, kv: KVCache, lockstep: Lockstep) -> None:
        self._kv = kv
        self._lockstep = lockstep

    @property
    def step(self) -> int:
        """The number of the step that is planned now, or next: the only clock a policy has."""
        return self._lockstep.planned + 1

    def num_output_tokens(self, request: Request) -> int:
        """Tokens that the request has been given so far."""
        return self._lockstep.num_tokens(request) - request.submit.num_prompt_tokens

    def num_new_tokens(self, request: Request) -> int:
        """Tokens that it has been given since its latest admission; 0 while it waits."""
        if request.status is not Status.RUNNING:
            return 0
        return self._lockstep.num_tokens(request) - request.num_tokens_at_admission

    def num_waited_steps(self, request: Request) -> int:
        """Steps of its wait; of the latest one, if it runs."""
        runs = request.status is Status.RUNNING
        return (request.admission_step if runs else self.step) - request.waiting_since

    def num_hit_tokens(self, request: Request) -> int:
        """Tokens of a waiting request that are in the prefix cache. O(hit)."""
        return len(self._kv.find_hit(request)) * self._kv.block_size

    def num_lost_tokens(self, request: Request) -> int:
        """Computed tokens that a running request would lose with its blocks. O(shared blocks)."""
        shared = self._kv.num_shared_blocks(request) * self._kv.block_size
        return max(self._lockstep.num_computed(request) - shared, 0)

    def service(self, tenant: str | None) -> float:
        """Weighted tokens that the tenant has been given, lifted when it comes back to wait."""
        service = self._lockstep.service
        if service is None:
            raise LookupError("no service is counted: the policy gives no token_weights")
        return service.of(tenant)
