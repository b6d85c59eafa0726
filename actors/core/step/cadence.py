"""Steps without prompts: `prefill_schedule_interval`, as vLLM 0.33 has it on an engine of its own.

After a step that computed a part of a prompt, the next steps compute none, chunks of running requests
included, until `interval` steps have passed, so that decodes go on undisturbed. Prompts are not held back
while nothing decodes, nor after a step that could not admit all that waits: then the engine is full.
"""

from collections.abc import Mapping

from sundog.actors.core.request import Request, Status


class PrefillCadence:
    """The steps since the last one that computed a part of a prompt, and whether the engine is full."""

    __slots__ = ("_interval", "_is_full", "_last_prefill", "_passed_over", "num_steps")

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self.num_steps = 0
        """The number of planned steps that compute anything."""
        self._last_prefill = -interval
        self._is_full = False
        """True if the last step that held nothing back left requests waiting that it could not pass over."""
        self._passed_over: dict[str, Request] = {}

    def holds(self, running: Mapping[str, Request]) -> bool:
        """Return True if the next step computes no part of a prompt. O(running)"""
        is_due = self.num_steps + 1 - self._last_prefill >= self._interval
        return not (is_due or self._is_full) and any([each.decodes_on_wire for each in running.values()])

    def pass_over(self, request: Request) -> None:
        """Note that a waiting request cannot be admitted for a reason of its own, whatever is free."""
        self._passed_over[request.request_id] = request

    def admit(self, request: Request) -> None:
        """Note that a request runs."""
        self._passed_over.pop(request.request_id, None)

    def plan(self, *, computes: bool, has_prefill: bool, num_waiting: int | None) -> None:
        """Take in a step that computes anything, or a part of a prompt.

        `num_waiting` is None if the step held prompts back or looked at no waiting request.
        """
        if computes:
            self.num_steps += 1
        if has_prefill:
            self._last_prefill = self.num_steps
        if num_waiting is None:
            return
        passed = self._passed_over
        for name in [name for name, request in passed.items() if request.status is Status.FINISHED]:
            del passed[name]
        self._is_full = num_waiting > len(passed)
