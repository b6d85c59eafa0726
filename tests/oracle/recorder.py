"""Recorder of the decisions of vLLM's scheduler and KV cache manager as golden logs; run by a Python that has
vLLM.

    python recorder.py MODEL_FOLDER TRACES.jsonl LOGS.jsonl

The first line written is vLLM's version; a trace that vLLM raises on has its error as a text for a log. The
loop is that of `tests/golden/README.md`. A trace's `module` is what `sundog export` wrote: then its scheduler
decides. The queue's order is not logged of a trace that `is_lazy`: logging it asks for more ranks than vLLM
needs.
"""

import importlib
import json
import os
import sys
from collections import deque
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}

import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

Line = dict[str, Any]

MOST_EMPTY_STEPS = 50
TERMS = ("tenant", "slo_ttft_s", "slo_tpot_s", "slo_e2e_s", "predicted_tokens")
WHEN_OUTPUTS_RUN_OUT = 3
NUM_LOGGED_FREE_BLOCKS = 4096


def new_scheduler(folder: str, config: Line, module: str | None) -> Any:
    """A scheduler of this configuration, with a pool and no model."""
    limits = SchedulerConfig(
        max_model_len=config["max_model_len"],
        is_encoder_decoder=False,
        policy=config["policy"] if module is None else "fcfs",
        async_scheduling=config["async_scheduling"],
        watermark=config["watermark"],
        enable_chunked_prefill=config["enable_chunked_prefill"],
        scheduler_reserve_full_isl=config["scheduler_reserve_full_isl"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=config["long_prefill_token_threshold_adaptive"],
        prefill_schedule_interval=config.get("prefill_schedule_interval", 1),
    )
    for name in ("max_num_batched_tokens", "max_num_seqs", "max_num_active_seqs"):
        object.__setattr__(limits, name, config[name])  # past checks of what a server should be given
    block_size = config["block_size"]
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=config["enable_prefix_caching"])
    model = ModelConfig(
        model=folder, dtype="float32", max_model_len=config["max_model_len"], skip_tokenizer_init=True
    )
    whole = VllmConfig(
        model_config=model, cache_config=cache, scheduler_config=limits, device_config=DeviceConfig("cpu")
    )
    limits.async_scheduling = config["async_scheduling"]
    # Past checks of what a machine without as many devices can run.
    whole.parallel_config.pipeline_parallel_size = config.get("pipeline_parallel_size", 1)
    cache.num_gpu_blocks = config["num_gpu_blocks"]
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    pool = KVCacheConfig(
        num_blocks=config["num_gpu_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    kind: Any = AsyncScheduler if config["async_scheduling"] else Scheduler
    if module is not None:
        carrying = importlib.import_module(module)
        kind = carrying.PolicyScheduler if config["async_scheduling"] else carrying.SyncPolicyScheduler
    made = kind(
        vllm_config=whole,
        kv_cache_config=pool,
        structured_output_manager=StructuredOutputManager(whole),
        block_size=block_size,
    )
    made.num_spec_tokens = config.get("num_speculative_tokens", 0)
    # Without a number of drafts for each size of batch, vLLM fills up the step of a request that joins
    # with one token, with drafts of no meaning, for the sake of CUDA graphs.
    made.dynamic_sd_lookup = [made.num_spec_tokens] * (config["max_num_seqs"] + 1)
    _keep_decodes_apart(made)
    return made


def _keep_decodes_apart(scheduler: Any) -> None:
    """Have a request's decodes as far apart in a pipeline as on a GPU, whose model runner asks for it.

    What that runner is told in another form stays as it is.
    """
    after_schedule = scheduler._update_after_schedule

    def update(output: Any) -> None:
        scheduler.use_v2_model_runner = True
        after_schedule(output)
        scheduler.use_v2_model_runner = False

    scheduler._update_after_schedule = update


class Recorder:
    """One trace, and the lines of its log."""

    def __init__(self, folder: str, trace: Line) -> None:
        self._config = trace["config"]
        self._is_lazy: bool = trace["is_lazy"]
        self._now_s = 0.0
        """Step k lasts from k to k + 1, for policies that look at the clock."""
        self._scheduler = new_scheduler(folder, self._config, trace.get("module"))
        self._scheduler.clock = lambda: self._now_s
        self._wait_q: list[str] = []
        """Who waits, when the latest step was planned."""
        self._note_waiting_when_planned()
        self._preempt = self._scheduler._preempt_request
        self._scheduler._preempt_request = self._note_preempted
        self._preempted: list[str] = []
        """By the step that was planned last, in order."""
        self._pool = self._scheduler.kv_cache_manager.block_pool
        hashes = get_hash_fn_by_name(self._config["hash_algo"])
        init_none_hash(hashes)
        self._hasher = get_request_block_hasher(self._config["block_size"], hashes)
        self._rows = deque(sorted(trace["requests"], key=lambda row: row["arrival_step"]))
        self._drafts = {row["id"]: row.get("drafts", []) for row in trace["requests"]}
        self._outputs = {row["id"]: row["outputs"] for row in trace["requests"]}
        events = sorted(trace.get("events", []), key=lambda event: event["step"])
        self._before = deque(event for event in events if event["when"] == "input")
        self._meanwhile = deque(event for event in events if event["when"] == "executing")
        self._queue: deque[tuple[int, Any, dict[str, list[int]]]] = deque()
        self._step = self._num_empty = 0
        self._num_refused = 0
        """Of those that the policy has refused and nobody was told of, the ones that are logged."""
        self.lines: list[Line] = []

    def run(self) -> list[Line]:
        stages = self._config.get("pipeline_parallel_size", 1)
        depth = stages + self._config["async_scheduling"]
        while self._num_empty <= MOST_EMPTY_STEPS:
            if not self._queue and not self._scheduler.has_requests():
                if not (self._rows or self._before):
                    return self._ended()
                self._step = max(self._step, self._next_input())
                self._now_s = max(self._now_s, float(self._step))
            self._take_input()
            if self._scheduler.has_requests():
                is_empty = self._schedule()
                self._num_empty = self._num_empty + 1 if is_empty else 0
                goes_on = not is_empty or (stages > 1 and self._scheduler.has_requests())
                if goes_on and len(self._queue) < depth:
                    continue
            if self._queue:
                self._update()
            else:
                self._step += 1
        self._step -= 1
        self.lines.append({"ev": "stall", "step": self._step, "waiting": self._waiting()})
        return self._ended()

    def _next_input(self) -> int:
        steps = [self._rows[0]["arrival_step"]] if self._rows else []
        return int(min([*steps, self._before[0]["step"]] if self._before else steps))

    def _take_input(self) -> None:
        while self._rows and self._rows[0]["arrival_step"] <= self._step:
            self._add(self._rows.popleft())
        refused = getattr(self._scheduler, "_refused", ())
        for request, reason in refused[self._num_refused :]:
            self.lines.append(
                {"ev": "refuse", "step": self._step, "id": request.request_id, "reason": reason}
            )
        self._num_refused = len(refused)
        while self._before and self._before[0]["step"] <= self._step:
            event = self._before.popleft()
            if event["op"] == "abort":
                self._abort(self._step, event)
                continue
            done = self._scheduler.reset_prefix_cache(reset_running_requests=event["reset_running"])
            self.lines.append({"ev": "reset", "step": self._step, "ok": bool(done), **self._free()})

    def _add(self, row: Line) -> None:
        sampling = SamplingParams(
            max_tokens=row["max_tokens"],
            min_tokens=row.get("min_tokens") or 0,
            ignore_eos=row["ignore_eos"],
            stop_token_ids=row["stop_token_ids"],
            extra_args={name: row[name] for name in TERMS if row.get(name) is not None},
        )
        sampling.update_from_generation_config({}, self._config["eos_token_id"])
        request = Request(
            request_id=row["id"],
            prompt_token_ids=row["prompt"],
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=row["arrival_time"],
            priority=row["priority"],
            cache_salt=row.get("cache_salt"),
            block_hasher=self._hasher if self._config["enable_prefix_caching"] else None,
        )
        self._scheduler.add_request(request)
        self.lines.append({"ev": "add", "step": self._step, "id": row["id"]})

    def _abort(self, step: int, event: Line) -> None:
        alive = [name for name in event["ids"] if name in self._scheduler.requests]
        self._scheduler.finish_requests(alive, RequestStatus.FINISHED_ABORTED)
        line = {"ev": "abort", "step": step, "when": event["when"], "ids": event["ids"], "aborted": alive}
        self.lines.append({**line, **self._free()})

    def _schedule(self) -> bool:
        """Plan a step; returns whether it computes nothing."""
        scheduler = self._scheduler
        self._preempted.clear()
        output = scheduler.schedule()
        cached = output.scheduled_cached_reqs
        new = [each.req_id for each in output.scheduled_new_reqs]
        resumed = [name for name in cached.req_ids if name in cached.resumed_req_ids]
        computed = {each.req_id: each.num_computed_tokens for each in output.scheduled_new_reqs}
        blocks = {each.req_id: list(each.block_ids[0]) for each in output.scheduled_new_reqs}
        computed |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        for name, added in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if added is not None and added[0]:
                blocks[name] = list(added[0])
        line = {
            "ev": "sched",
            "step": self._step,
            "sched": [[name, num] for name, num in output.num_scheduled_tokens.items()],
            "new": new,
            "resumed": resumed,
            "running": [name for name in cached.req_ids if name not in cached.resumed_req_ids],
            "preempted": list(self._preempted),
            "computed": computed,
            "hit": {name: computed[name] for name in new + resumed},
            "blocks": blocks,
            **self._free(),
            "finished_flush": sorted(output.finished_req_ids),
            "run_q": [request.request_id for request in scheduler.running],
            "wait_q": self._wait_q,
        }
        self.lines.append(line)
        self._queue.append((self._step, output, self._sampled(output)))
        self._step += 1
        return not output.total_num_scheduled_tokens

    def _sampled(self, output: Any) -> dict[str, list[int]]:
        """The tokens of a step: the i-th output of each request that has all before it computed."""
        sampled = {}
        for name in output.num_scheduled_tokens:
            request, outputs = self._scheduler.requests[name], self._outputs[name]
            num_drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            first = request.num_computed_tokens - num_drafts - request.num_prompt_tokens
            num_right = min(num_drafts, self._drafts_of(name, first)[1])
            tokens = [
                outputs[index] if 0 <= index < len(outputs) else WHEN_OUTPUTS_RUN_OUT
                for index in range(first, first + num_right + 1)
            ]
            sampled[name] = [] if request.is_prefill_chunk else tokens
        return sampled

    def _drafts_of(self, name: str, index: int) -> list[int]:
        drafts = self._drafts[name]
        return drafts[index] if 0 <= index < len(drafts) else [0, 0]

    def _offer(self, sampled: dict[str, list[int]]) -> None:
        """Give the scheduler the drafts for the next step of each request that sampled."""
        alive = [name for name in sampled if name in self._scheduler.requests]
        offered = []
        for name in alive:
            index = self._scheduler.requests[name].num_output_tokens
            offered.append([WHEN_OUTPUTS_RUN_OUT] * self._drafts_of(name, index)[0])
        self._scheduler.update_draft_token_ids(DraftTokenIds(alive, offered))

    def _update(self) -> None:
        step, output, sampled = self._queue.popleft()
        while self._meanwhile and self._meanwhile[0]["step"] <= step:
            self._abort(step, self._meanwhile.popleft())
        result = ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={name: index for index, name in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self._now_s, self._num_refused = step + 1.0, 0
        told = self._scheduler.update_from_output(output, result)
        if self._config.get("num_speculative_tokens"):
            self._offer({name: tokens for name, tokens in sampled.items() if tokens})
        each = [one for client in told.values() for one in client.outputs if one.request_id in sampled]
        tokens = {one.request_id: list(one.new_token_ids) for one in each if one.new_token_ids}
        ended = [one for one in each if one.finish_reason is not None]
        reasons = {one.request_id: one.stop_reason for one in ended if one.stop_reason is not None}
        cached = self._pool.cached_block_hash_to_block._cache
        self.lines.append(
            {
                "ev": "update",
                "step": step,
                "tokens": {name: tokens[name] for name in sampled if name in tokens},
                "finished": {one.request_id: str(one.finish_reason) for one in ended},
                "stop_reason": reasons,
                **self._free(),
                "cached_blocks": sum(len(ids) if isinstance(ids, dict) else 1 for ids in cached.values()),
            }
        )

    def _note_preempted(self, request: Any, *more: Any, **named: Any) -> None:
        self._preempted.append(request.request_id)
        self._preempt(request, *more, **named)

    def _free(self) -> Line:
        return {"free_blocks": self._pool.get_num_free_blocks()}

    def _note_waiting_when_planned(self) -> None:
        """Note the queue's order before counts move on, except where nothing may ask for it but vLLM."""
        after_schedule = self._scheduler._update_after_schedule

        def update(output: Any) -> None:
            if not self._is_lazy:
                self._wait_q = self._waiting()
            after_schedule(output)

        self._scheduler._update_after_schedule = update

    def _waiting(self) -> list[str]:
        queues = (self._scheduler.kv_holding_waiting, self._scheduler.waiting)
        return [request.request_id for queue in queues for request in queue]

    def _ended(self) -> list[Line]:
        free = [block.block_id for block in self._pool.free_block_queue.get_all_free_blocks()]
        line = {"ev": "end", "step": self._step, **self._free()}
        self.lines.append({**line, "free_queue": free[:NUM_LOGGED_FREE_BLOCKS]})
        return self.lines


def recorded(folder: str, trace: Line) -> list[Line] | str:
    """A trace's log, or what vLLM raised."""
    try:
        return Recorder(folder, trace).run()
    except Exception as error:  # noqa: BLE001  # whatever vLLM raises is its answer
        return f"vLLM raised {error!r}"


def main(folder: str, asked: str, answered: str) -> None:
    with Path(asked).open() as traces, Path(answered).open("w", buffering=1) as logs:
        logs.write(json.dumps(vllm.__version__) + "\n")
        for line in traces:
            logs.write(json.dumps(recorded(folder, json.loads(line))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
