"""Requests that decode in lockstep: one token each in every step, and no step touches them.

In steady decode only lengths change. A member's lengths are therefore not stored; they follow from the step
in which it joined. A step touches a member only when the member needs a new block (`grows`), has filled one
(`fills`) or reaches its length limit (`expiries`). The last two are calendars by step number. A member grows
once in as many steps as a block has tokens, always at the same place of this period, and `grows` lists the
members of each place. Members that grow or fill in one step are in order of admission.

Law: settling a member at any moment gives the counts that touching it in every step would have given.

With blocks of 4 tokens, a request that catches up in step 10 has 6 computed tokens in 2 blocks, of which the
first is registered, and a limit of 10 tokens. Step 10 samples its 7th token, and then

    step            11    12    13
    computes token   7     8     9
    block            2     2     3
    calendar             fills  grows, expiries (it samples the 10th)

When step 12 is planned and the result of step 11 is back, `settle` gives 8 tokens computed, 8 known and
one in flight.
"""

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Final

from sundog.actors.core.queue.tenant_service import TenantService
from sundog.actors.core.request import Request

Calendar = dict[int, list[Request]]
# Compiled code finds a final name at once, and an imported function by a look-up in its module.
_push: Final = heappush
_pop: Final = heappop
_replace: Final = heapreplace
PLENTY: Final = 256
"""Number of steps that suffices for one decode run."""


class InFlight:
    """A planned step whose result has not come back.

    `samplers` are requests that sample in it but have left the lockstep since. `drafted` is the number of
    drafts to verify, by request. Outputs of `dropped` requests will be discarded. `firsts` sample their first
    token. `computed` has, for requests with chunks, the full blocks they will have, and whether all their
    known tokens are then computed. `following` is the step planned after it, if any. A record whose result
    has come back serves a later step.
    """

    __slots__ = ("computed", "drafted", "dropped", "firsts", "following", "samplers", "step")

    def __init__(self) -> None:
        self.step = 0
        self.samplers: list[Request] = []
        self.drafted: dict[str, int] = {}
        self.dropped: set[str] = set()
        self.firsts: list[Request] = []
        self.computed: Sequence[tuple[Request, int, bool]] = ()
        self.following: InFlight | None = None


def _add(members: list[Request], request: Request) -> None:
    members.append(request)
    # Most join in order of admission; one with a long prompt joins after some that were admitted later.
    if len(members) > 1 and members[-2].order > request.order:
        members.sort(key=_order)


def _leave(calendar: Calendar, step: int, request: Request) -> None:
    entered = calendar.get(step)
    if entered is not None and request in entered:
        entered.remove(request)
        if not entered:
            del calendar[step]


def _order(request: Request) -> int:
    return request.order


class Lockstep:
    """The members, the number of planned steps, and the number of steps whose results have come back."""

    __slots__ = (
        "_expiry_steps",
        "_first_expiry",
        "_spare_until",
        "_unused",
        "block_size",
        "done",
        "done_s",
        "expiries",
        "fills",
        "grows",
        "max_order",
        "members",
        "newest",
        "oldest",
        "planned",
        "service",
    )

    def __init__(self, block_size: int, token_weights: tuple[float, float] | None = None) -> None:
        self.block_size = block_size
        self.service = None if token_weights is None else TenantService(token_weights, self)
        self.members: dict[str, Request] = {}
        self.max_order = 0
        """Upper bound of the members' latest admissions."""
        self.planned = 0
        self.done = 0
        self.done_s = 0.0
        """Time at which the last finished step ended."""
        self.oldest: InFlight | None = None
        """First step in flight; the others follow it."""
        self.newest: InFlight | None = None
        """Last step in flight."""
        self._unused: InFlight | None = None
        self.grows: list[list[Request]] = [[] for _ in range(block_size)]
        """Members by the steps in which they need a block, modulo the tokens of a block."""
        self._spare_until = 0
        """Step before which some member may have a block more than it needs."""
        self.fills: Calendar = {}
        self.expiries: Calendar = {}
        self._expiry_steps: list[int] = []
        self._first_expiry = 0
        """Step before which no member reaches its limit."""

    def begin(self, step: int) -> InFlight:
        """Add a planned step, and return its record."""
        self.planned = step
        record, self._unused = self._unused, None
        if record is None:
            record = InFlight()
        record.step = step
        if self.newest is None:
            self.oldest = record
        else:
            self.newest.following = record
        self.newest = record
        return record

    @property
    def dropped(self) -> set[str]:
        """Requests whose outputs of the first step in flight will be discarded."""
        assert self.oldest is not None, "no step is in flight"
        return self.oldest.dropped

    def take_oldest(self) -> InFlight:
        """Remove and return the first step in flight."""
        record = self.oldest
        assert record is not None, "no step is in flight"
        self.oldest, record.following = record.following, None
        if self.newest is record:
            self.newest = None
        return record

    def drop(self, request_id: str) -> None:
        """Discard the outputs of a request in all steps in flight."""
        record = self.oldest
        while record is not None:
            record.dropped.add(request_id)
            record = record.following

    def end(self, record: InFlight) -> None:
        """Forget a step whose result has been applied; another one will use its record."""
        if record.samplers:
            record.samplers = []
        if record.drafted:
            record.drafted = {}
        if record.dropped:
            record.dropped = set()
        if record.firsts:
            record.firsts = []
        record.computed = ()
        self._unused = record

    def join(self, request: Request) -> None:
        """Add a request that catches up with the step just planned."""
        now, held = self.planned, request.num_computed_tokens
        request.in_lockstep = True
        request.joined = now
        self.members[request.request_id] = request
        self.max_order = max(self.max_order, request.order)
        if request.first_token_s is None:
            assert self.newest is not None, "a request joins with a step"
            self.newest.firsts.append(request)
        # Step now + n computes token held + n; the first behind the last block's slots needs a new block.
        self.enter_grow(request, now + len(request.block_ids) * self.block_size - held + 1)
        if request.num_registered_blocks < request.num_named_blocks:
            full = (request.num_registered_blocks + 1) * self.block_size
            self.enter_fill(request, now + full - held)
        expiry = now + request.length_limit - held - 1
        if expiry not in self.expiries:
            self.expiries[expiry] = []
            steps = self._expiry_steps
            if steps and steps[0] < now:  # passed: only decode runs ask for them
                _replace(steps, expiry)
            else:
                _push(steps, expiry)
            if expiry < self._first_expiry:
                self._first_expiry = expiry
        self.expiries[expiry].append(request)
        if self.service is not None:
            self.service.join(request)

    def enter_grow(self, request: Request, step: int) -> None:
        """Let a member need its first block in `step`."""
        request.first_grow = step
        _add(self.grows[step % self.block_size], request)
        if step > self.planned + self.block_size:
            self._spare_until = max(self._spare_until, step)

    def enter_fill(self, request: Request, step: int) -> None:
        request.next_fill = step
        entered = self.fills.get(step)
        if entered is None:
            self.fills[step] = [request]
        else:
            _add(entered, request)

    @property
    def has_spare(self) -> bool:
        """Whether a member may have a block more than it needs, so that it grows a period later."""
        return self.planned < self._spare_until

    def grows_in(self, request: Request, step: int) -> bool:
        """Return whether a member needs a block in `step`, not before the next one."""
        return step >= request.first_grow and (step - request.first_grow) % self.block_size == 0

    def due_to_grow(self, step: int) -> list[Request]:
        """Return members whose next token in `step` needs a new block.

        The list may be the lockstep's own, which changes when a member joins or is settled.
        """
        growing = self.grows[step % self.block_size]
        if step < self._spare_until:
            growing = [request for request in growing if request.first_grow <= step]
        return growing

    def grow_through(self, first: int, last: int) -> tuple[list[Request], int]:
        """Return the members that need blocks in steps `first` to `last`, in order, and the number of blocks.

        The order repeats: of k members, the n-th block goes to number n modulo k.
        """
        size, grows, turns, num_blocks = self.block_size, self.grows, list[Request](), 0
        # One period names each member that grows at all.
        for step in range(first, min(last, first + size - 1) + 1):
            growing = grows[step % size]
            if growing:
                num_blocks += ((last - step) // size + 1) * len(growing)
                turns += growing
        return turns, num_blocks

    def due_to_fill(self, step: int) -> list[Request]:
        """Return members whose token of `step` fills a block, and enter each in the calendar again."""
        due: list[Request] = []
        if step in self.fills:
            due = self.fills.pop(step)
            for request in due:
                if request.num_registered_blocks + 1 < request.num_named_blocks:
                    self.enter_fill(request, step + self.block_size)
        return due

    def may_expire(self, step: int) -> bool:
        """Return whether a member may reach its length limit with the token of `step`."""
        return step >= self._first_expiry and step in self.expiries

    def due_to_expire(self, step: int) -> list[Request]:
        """Return members that reach their length limit with the token of `step`."""
        if not self.may_expire(step):
            return []
        entered = self.expiries[step]
        del self.expiries[step]
        # `settle` leaves entries here, and a request may have joined again since: its expiry moved.
        return [request for request in entered if request.in_lockstep and self.expiry(request) == step]

    def expiry(self, request: Request) -> int:
        """Return the step whose token brings a member to its length limit."""
        return request.joined + request.length_limit - request.num_computed_tokens - 1

    def num_computed(self, request: Request) -> int:
        """Return the exact number of computed tokens of any request, including planned steps."""
        if not request.in_lockstep:
            return request.num_computed_tokens
        return request.num_computed_tokens + self.planned - request.joined

    def num_in_flight(self, request: Request) -> int:
        """Return the exact number of the request's samples that have not come back."""
        if not request.in_lockstep:
            return request.num_in_flight
        # Steps before it joined are in its own count; of the others those that are not done are in flight.
        return request.num_in_flight + self.planned - max(self.done, request.joined - 1)

    def num_tokens(self, request: Request) -> int:
        """Return the exact number of known tokens of any request."""
        if not request.in_lockstep:
            return request.num_tokens
        return request.num_tokens + max(0, self.done - request.joined + 1)

    def last_token_s(self, request: Request) -> float | None:
        """Return when any request got its latest token; None before its first."""
        is_given = request.in_lockstep and self.done >= request.joined
        return self.done_s if is_given else request.last_token_s

    def settle(self, request: Request) -> None:
        """Remove a member, and store its exact counts."""
        if self.done >= request.joined:
            request.last_token_s = self.done_s
        computed, in_flight = self.num_computed(request), self.num_in_flight(request)
        request.num_tokens = self.num_tokens(request)
        request.num_computed_tokens, request.num_in_flight = computed, in_flight
        # A member is in no list of samplers; the steps in flight that it samples in must list it from now on.
        record = self.oldest
        while record is not None:
            if record.step >= request.joined:
                record.samplers.append(request)
            record = record.following
        request.in_lockstep = False
        self.grows[request.first_grow % self.block_size].remove(request)
        if self.fills:
            _leave(self.fills, request.next_fill, request)
        del self.members[request.request_id]
        if not self.members:
            self.max_order = 0
        if self.service is not None:
            self.service.settle(request)

    def dissolve(self) -> list[Request]:
        """Settle every member. O(members)"""
        members = list(self.members.values())
        for request in members:
            self.settle(request)
        self.fills.clear()
        self.expiries.clear()
        self._expiry_steps.clear()
        return members

    def next_expiry(self) -> int | None:
        """Return the first step, from the last planned one on, whose token may bring a member to its length
        limit.
        """
        steps, expiries = self._expiry_steps, self.expiries
        while steps:
            first = steps[0]
            if first in expiries:
                if first >= self.planned:
                    self._first_expiry = first
                    return first
                del expiries[first]
            _pop(steps)
        return None

    def steps_that_fit(self, num_free_blocks: int) -> int:
        """Return a number of steps for which free blocks suffice for certain. O(block size) if few are
        free.
        """
        grows, size = self.grows, self.block_size
        # Lower bound without a look at the calendar: every member gets the same number of blocks.
        num_each = num_free_blocks // len(self.members) if self.members else 0
        if num_each * size >= PLENTY:
            return num_each * size  # Every member grows at most once in as many steps as a block has tokens.
        coming, each_period = list[int](), 0
        for step in range(self.planned + 1, self.planned + size + 1):
            num_growing = len(grows[step % size])
            coming.append(num_growing)
            each_period += num_growing
        periods, rest = divmod(num_free_blocks, each_period or 1)
        num_steps = periods * size
        for num_growing in coming:
            if num_growing > rest:
                break
            rest -= num_growing
            num_steps += 1
        return num_steps
