"""Victims that lose little (vLLM RFC 54644): `--policy docs/policies/least_recompute.py:LeastRecompute`."""

from typing import ClassVar

from sundog import Policy, Request, View


class LeastRecompute(Policy):
    """When blocks run out, the request goes that loses the fewest computed tokens; of equals the latest."""

    returns_to_front: ClassVar[bool] = True

    def victim(self, running: dict[str, Request], view: View) -> Request:
        return min(reversed(running.values()), key=view.num_lost_tokens)
