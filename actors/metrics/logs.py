"""Log lines of finished requests, of each engine's throughput in vLLM's format, and of drafts.

A record carries its numbers as `fields`, too, for `--log-format json`.
"""

import logging

from sundog.actors.core.acceptance import Acceptance
from sundog.actors.core.logged import MOST_LOGGED, logged
from sundog.actors.kernel.actor import Actor
from sundog.actors.kernel.clock import now_s
from sundog.actors.messages import Heard, StepOutput
from sundog.actors.metrics.measured import Measured
from sundog.actors.metrics.totals import EngineTotals

requests_log = logging.getLogger("sundog.requests")
engine_log = logging.getLogger("sundog.engine")


def log_request(request: Measured, reason: str, time_s: float) -> None:
    """Log a finished request: tokens in and out, times, and the finish reason."""
    fields: dict[str, object] = {
        "request_id": request.request_id[:MOST_LOGGED],
        "tenant": None if request.tenant is None else request.tenant[:MOST_LOGGED],
        "adapter": request.adapter,
        "prompt_tokens": request.num_prompt_tokens,
        "cached_tokens": request.num_cached_tokens,
        "output_tokens": request.num_tokens,
        "num_preemptions": request.num_preemptions,
        "queue_s": None if request.scheduled_s is None else request.scheduled_s - request.arrival_s,
        "ttft_s": request.ttft_s,
        "tpot_s": request.tpot_s,
        "e2e_s": time_s - request.arrival_s,
        "finish_reason": reason,
    }
    said = [f"{request.num_prompt_tokens} tokens in ({request.num_cached_tokens} cached)"]
    said.append(f"{request.num_tokens} out")
    said += [f"{name} {value!r}" for name in ("tenant", "adapter") if (value := fields[name]) is not None]
    if request.ttft_s is not None:
        said.append(f"TTFT {request.ttft_s:.3f} s")
    if request.tpot_s is not None:
        said.append(f"TPOT {1000 * request.tpot_s:.1f} ms")
    said.append(f"E2E {time_s - request.arrival_s:.3f} s")
    if request.num_preemptions:
        said.append(f"preempted {request.num_preemptions} times")
    name = logged(request.request_id)
    requests_log.info("%s: %s: %s", name, ", ".join(said), reason, extra={"fields": fields})


class Throughput:
    """Logger of each engine's work since the last line; idle engines are skipped."""

    def __init__(self, engines: list[EngineTotals], time_s: float) -> None:
        self._engines = engines
        self._since_s = time_s
        self._last = [(0, 0, 0)] * len(engines)
        self._was_idle = [True] * len(engines)

    def log(self, time_s: float) -> None:
        """Log a line for each engine that is or was working."""
        span_s, self._since_s = time_s - self._since_s, time_s
        for number, engine in enumerate(self._engines):
            counts = (engine.num_computed_prompt_tokens, engine.num_generation_tokens, engine.num_preemptions)
            prompt, generation, preemptions = (
                now - before for now, before in zip(counts, self._last[number], strict=True)
            )
            self._last[number] = counts
            is_idle = not (prompt or generation or engine.num_running or engine.num_waiting)
            if span_s > 0 and not (is_idle and self._was_idle[number]):
                self._say(number, engine, prompt / span_s, generation / span_s, preemptions)
            self._was_idle[number] = is_idle

    def _say(
        self, number: int, engine: EngineTotals, prompt: float, generation: float, preemptions: int
    ) -> None:
        fields: dict[str, object] = {
            "engine": number,
            "prompt_tokens_per_s": prompt,
            "generation_tokens_per_s": generation,
            "num_running": engine.num_running,
            "num_waiting": engine.num_waiting,
            "num_preemptions": preemptions,
            "kv_cache_usage": engine.kv_usage,
        }
        said = [
            f"Avg prompt throughput: {prompt:.1f} tokens/s",
            f"Avg generation throughput: {generation:.1f} tokens/s",
            f"Running: {engine.num_running} reqs",
            f"Waiting: {engine.num_waiting} reqs",
        ]
        if preemptions:
            said.append(f"Preemptions: {preemptions}")
        said.append(f"KV cache usage: {100 * engine.kv_usage:.1f}%")
        if engine.num_prefix_queries:
            rate = fields["prefix_hit_rate"] = engine.num_prefix_hits / engine.num_prefix_queries
            said.append(f"Prefix cache hit rate: {100 * rate:.1f}%")
        engine_log.info("Engine %03d: %s", number, ", ".join(said), extra={"fields": fields})


EVERY_S = 10.0


class AcceptanceLog(Actor[Heard]):
    """Logs accepted drafts every ten seconds, when all engines are idle, and at the end."""

    def __init__(self) -> None:
        super().__init__("acceptance-log")
        self._counts = Acceptance()
        self._said_s = -EVERY_S

    def handle(self, message: Heard) -> None:
        if not isinstance(message, StepOutput):
            return
        if message.accepted:
            self._counts.add(message.batch.drafts, message.accepted, message.surplus)
        is_idle = not (message.num_running or message.num_waiting)
        if is_idle or now_s() >= self._said_s + EVERY_S:
            self._say()

    async def closed(self) -> None:
        self._say()

    def _say(self) -> None:
        counts = self._counts
        if not counts.num_drafts:
            return
        self._counts, self._said_s = Acceptance(), now_s()
        engine_log.info(
            "drafts: %d of %d accepted (%.1f %%), %.2f tokens a verification, by position %s",
            counts.num_accepted_tokens,
            counts.num_draft_tokens,
            100 * counts.rate,
            counts.mean_length,
            ", ".join(f"{rate:.3f}" for rate in counts.rates),
        )
