"""The waiting queue: in the policy's order, first come first served among equals."""

import random

from sundog.actors.core.policies import Fcfs, Policy, Priority, Rank, Request, View
from sundog.actors.core.queue.waiting import FEW, Alarms, WaitingQueue
from tests.core.requests import request, scheduler_state


def waiting_queue(policy: Policy) -> WaitingQueue:
    return scheduler_state(policy).waiting


def names(queue: WaitingQueue) -> list[str]:
    return [waiting.request_id for waiting in queue]


def test_under_fcfs_requests_wait_in_order_of_arrival() -> None:
    """Whatever their priority says."""
    queue = waiting_queue(Fcfs())
    for name, priority in (("a", 3), ("b", 1), ("c", 2)):
        queue.push(request(name, priority=priority))
    assert names(queue) == ["a", "b", "c"] and queue.peek().request_id == "a"


def test_under_fcfs_who_returns_goes_first_and_the_last_to_return_foremost() -> None:
    """Victims are preempted from the back, so several end up in their old order."""
    queue = waiting_queue(Fcfs())
    queue.push(request("new"))
    queue.put_back(request("second"))
    queue.put_back(request("first"))
    assert names(queue) == ["first", "second", "new"]


def test_under_priority_the_order_is_priority_arrival_id() -> None:
    """And a preempted request takes the very place it had."""
    queue = waiting_queue(Priority())
    queue.push(request("d", priority=1))
    queue.push(request("c", priority=0, arrival_s=2.0))
    queue.push(request("b", priority=0, arrival_s=1.0))
    queue.put_back(request("a", priority=0, arrival_s=2.0))
    assert names(queue) == ["b", "a", "c", "d"]


def test_who_left_is_never_next() -> None:
    """Discarding twice, or someone unknown, is harmless."""
    queue = waiting_queue(Fcfs())
    requests = [request(name) for name in "abc"]
    for waiting in requests:
        queue.push(waiting)
    queue.discard(requests[0])
    queue.discard(requests[0])
    queue.discard(request("stranger"))
    assert queue.peek() is requests[1] and len(queue) == 2


def test_the_queue_agrees_with_a_sorted_list_whatever_happens() -> None:
    """Random pushes, returns and departures, and requests that are passed over, under both policies."""
    for seed in range(40):
        rng = random.Random(seed)
        policy = Priority() if seed % 2 else Fcfs()
        state = scheduler_state(policy)
        queue, model = state.waiting, []
        for number in range(120):
            if model and rng.random() < 0.45:
                queue.discard(model.pop(rng.randrange(len(model))))
            else:
                new = request(f"r{number:03}", priority=rng.randrange(3), arrival_s=float(number // 4))
                if rng.random() < 0.3:
                    queue.put_back(new)
                    model.insert(0, new)
                else:
                    queue.push(new)
                    model.append(new)
            if seed % 2:
                model.sort(key=lambda r: policy.rank(r, state.view))
            assert list(queue) == model and len(queue) == len(model)
            assert queue.peek() is (model[0] if model else None)
            num_passed = rng.randrange(4)
            for passed in model[:num_passed]:
                assert queue.peek() is passed
                queue.pass_over()
            if len(model) > num_passed and rng.random() < 0.3:
                queue.discard(model.pop(num_passed))
            queue.rewind()


def test_who_is_passed_over_keeps_the_place() -> None:
    """Until the queue is rewound somebody else is next; then the order is as before."""
    queue = waiting_queue(Fcfs())
    for name in "abc":
        queue.push(request(name))
    queue.pass_over()
    assert queue.peek().request_id == "b"
    queue.discard(queue.peek())
    queue.rewind()
    assert queue.peek().request_id == "a" and names(queue) == ["a", "c"]


class ToTheBack(Policy):
    """Requests of an odd number of tokens come first; whoever returns waits behind its equals."""

    def rank(self, request: Request, view: View) -> int:
        return 1 - request.num_tokens % 2


def test_who_returns_waits_behind_its_equals_unless_the_policy_says_otherwise() -> None:
    """The default; the order among equals is that in which they began to wait."""
    queue = waiting_queue(ToTheBack())
    for name, prompt in (("even", (5, 5)), ("odd", (5,)), ("odd-too", (5, 5, 5))):
        queue.push(request(name, prompt))
    queue.put_back(request("back", (5,)))
    assert names(queue) == ["odd", "odd-too", "back", "even"]


def test_a_wait_begins_with_the_step_that_is_planned_next_and_without_overtakes() -> None:
    """Whether the request is new or returns."""
    state = scheduler_state(Fcfs())
    state.lockstep.planned = 6
    for put in (state.waiting.push, state.waiting.put_back):
        waiting = request(put.__name__)
        waiting.num_overtakes = 3
        put(waiting)
        assert (waiting.waiting_since, waiting.num_overtakes) == (7, 0)


def test_ranks_are_told_once() -> None:
    """Of each request that began to wait, in order; under fcfs, where all are equal, none."""
    queue = waiting_queue(ToTheBack())
    queue.push(request("even", (5, 5)))
    queue.push(request("odd", (5,)))
    assert queue.take_ranks() == (("even", 1), ("odd", 0)) and queue.take_ranks() == ()
    queue = waiting_queue(Fcfs())
    queue.push(request("a"))
    assert queue.take_ranks() == ()


def test_an_alarm_is_due_at_its_time_and_not_before() -> None:
    """The last that was set for a request counts, and one that was forgotten does not."""
    alarms, due = Alarms(), dict[str, None]()
    alarms.set("a", 3.0)
    alarms.set("b", 5.0)
    alarms.set("a", 4.0)
    alarms.take(3.0, due)
    assert due == {} and len(alarms) == 2
    alarms.take(4.0, due)
    assert list(due) == ["a"] and len(alarms) == 1
    alarms.forget("b")
    alarms.take(9.0, due)
    assert list(due) == ["a"] and not alarms


def test_alarms_that_are_obsolete_do_not_stay() -> None:
    """However often one is set anew."""
    alarms = Alarms()
    for turn in range(1000):
        alarms.set("a", float(turn))
    assert len(alarms._heap) <= 2 + FEW
    due = dict[str, None]()
    alarms.take(998.0, due)
    assert due == {}
    alarms.take(999.0, due)
    assert list(due) == ["a"]


class LaterLast(Policy):
    """The request `turns` comes last from 7 s on; any other is in the middle."""

    def rank(self, request: Request, view: View) -> Rank | int:
        if request.request_id != "turns":
            return 1
        return Rank(0, until_s=7.0) if view.now_s < 7.0 else 2


def test_ranks_are_asked_again_when_the_clock_is_set_back() -> None:
    """A foreign scheduler's clock may be: what was said of a time that is yet to come counts no more."""
    state = scheduler_state(LaterLast())
    queue, view = state.waiting, state.view
    for name in ("turns", "other"):
        queue.push(request(name))
    seen = []
    for now_s in (0.0, 6.9, 7.0, 10.0, 5.0, 8.0):
        view.advance(now_s)
        queue.rerank()
        first = queue.peek()
        assert first is not None
        seen.append(first.request_id)
    assert seen == ["turns", "turns", "other", "other", "turns", "other"]
