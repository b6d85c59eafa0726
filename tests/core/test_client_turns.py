"""Turns of clients at one worker, against a one-line reference."""

import random

from sundog.actors.core.queue.client_turns import MOST_CLIENTS, ClientTurns
from tests.core.traces import num_cases


def test_the_next_is_of_the_client_whose_last_turn_is_longest_ago() -> None:
    """And of several that never had one, of whoever came first; each client's own in order."""
    for seed in range(num_cases(50)):
        rng, turns = random.Random(seed), ClientTurns[int]()
        waiting: list[tuple[str, int]] = []
        last: dict[str, int] = {}
        for number in range(200):
            if rng.random() < 0.55:
                client = rng.choice("abcde")
                turns.put(client, number)
                waiting.append((client, number))
            elif rng.random() < 0.1:
                turns.keep(lambda item: item % 3 != 0)
                waiting = [each for each in waiting if each[1] % 3 != 0]
            elif not waiting:
                assert turns.take() is None
            else:
                found = turns.take()
                oldest = min(last.get(client, -1) for client, _ in waiting)
                due = {}
                for client, item in waiting:
                    if last.get(client, -1) == oldest:
                        due.setdefault(client, item)
                assert found in due.values()
                (client,) = [name for name, item in due.items() if item == found]
                waiting.remove((client, found))
                last[client] = number


def test_a_crowd_of_clients_is_forgotten_and_served() -> None:
    turns = ClientTurns[int]()
    for number in range(3 * MOST_CLIENTS):
        turns.put(str(number), number)
        assert turns.take() == number
    assert len(turns._last_turns) == MOST_CLIENTS
