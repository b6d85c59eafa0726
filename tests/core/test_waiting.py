"""The waiting queue: in the policy's order, first come first served among equals."""

import random

from actors.core.policies import Fcfs, Policy, Priority
from actors.core.queue.waiting import WaitingQueue
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
