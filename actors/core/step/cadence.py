"""Steps without prompts: `prefill_schedule_interval`, as in vLLM 0.33 on a single engine.

After a step with prompt tokens the next steps have none, chunks of running requests included, until
`interval` steps have passed, so that decodes are not slowed. Prompts are computed anyway while nothing
decodes, and after a step that could not admit all waiting requests: then the engine is full. vLLM knows no
pauses: here they are computed also after a step in which a policy paused all that decodes.
"""

from collections.abc import Mapping

from sundog.actors.core.request import Request, Status


class PrefillCadence:
    """Steps since the last one with prompt tokens, and whether the engine is full."""

    __slots__ = ("_interval", "_is_full", "_last_prefill", "_passed_over", "num_steps")

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self.num_steps = 0
        """Number of planned steps with any tokens."""
        self._last_prefill = -interval
        self._is_full = False
        """Whether the last step that admitted requests left some waiting that it could not pass over."""
        self._passed_over: dict[str, Request] = {}

    def holds(self, running: Mapping[str, Request]) -> bool:
        """Return whether the next step must not compute prompts. O(running)"""
        is_due = self.num_steps + 1 - self._last_prefill >= self._interval
        return not (is_due or self._is_full) and any([each.decodes_on_wire for each in running.values()])

    def pass_over(self, request: Request) -> None:
        """Record that a waiting request cannot be admitted for a reason of its own, not for lack of space."""
        self._passed_over[request.request_id] = request

    def admit(self, request: Request) -> None:
        """Record an admission."""
        self._passed_over.pop(request.request_id, None)

    def plan(self, *, computes: bool, has_prefill: bool, is_held: bool, num_waiting: int | None) -> None:
        """Record a planned step: whether it computes anything and whether a part of a prompt.

        With `is_held`, prompts were held back for decodes that a policy can pause: if nothing was computed,
        it paused all of them, and the next step computes prompts.
        `num_waiting` is None if the step held prompts back or considered no waiting request.
        """
        if computes:
            self.num_steps += 1
        elif is_held:
            self._last_prefill = self.num_steps - self._interval
        if has_prefill:
            self._last_prefill = self.num_steps
        if num_waiting is None:
            return
        passed = self._passed_over
        for name in [name for name, request in passed.items() if request.status is Status.FINISHED]:
            del passed[name]
        self._is_full = num_waiting > len(passed)
