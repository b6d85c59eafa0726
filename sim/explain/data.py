"""Explanations as JSON for programs: times in seconds, complete."""

from dataclasses import asdict
from typing import Any

from sundog.actors.core.acceptance import Acceptance
from sundog.sim.explain.findings import Findings
from sundog.sim.explain.history import History, RequestHistory, RunningSpan
from sundog.sim.explain.phases import RequestPhase, passings, phases, totals
from sundog.sim.figures.engine import SpeculationFigures
from sundog.sim.record.journal_rows import Chosen


def request_data(history: History, request: RequestHistory) -> dict[str, Any]:
    """Describe one request, with every phase from its arrival to its end."""
    found = phases(history, request)
    return {
        "request_id": request.request_id,
        "replica": request.replica,
        **_choice_data(history.choices.get(request.request_id)),
        "tenant": request.arrival.tenant,
        "priority": request.arrival.priority,
        "num_prompt_tokens": request.arrival.num_prompt_tokens,
        "num_output_tokens": request.num_output_tokens,
        "arrival": request.arrival.time_s,
        "first_token": request.first_token_s,
        "end": request.end_s,
        "reason": request.reason,
        "passed_by": [
            passing._asdict() for wait in request.waits for passing in passings(history, request, wait)
        ],
        **({} if request.refusal is None else {"refusal": request.refusal}),
        **_drafts_data(request.drafts),
        "totals": totals(found),
        "phases": [_phase_data(phase) for phase in found],
        "admissions": [_span_data(span) for span in request.spans],
    }


def _drafts_data(drafts: Acceptance) -> dict[str, Any]:
    figures = SpeculationFigures.of(drafts)
    return {} if figures is None else {"speculation": asdict(figures)}


def _choice_data(choice: Chosen | None) -> dict[str, Any]:
    return {} if choice is None else {"routed": choice._asdict() | {"request_ids": list(choice.request_ids)}}


def _phase_data(phase: RequestPhase) -> dict[str, Any]:
    row = {"kind": phase.kind, "start": phase.start_s, "end": phase.end_s, "num_steps": phase.num_steps}
    if phase.kind == "waiting":
        row |= {
            "reason": phase.reason,
            "own_turn": phase.own,
            "behind": phase.heads,
            "needed_blocks": phase.needed_blocks,
            "free_blocks": phase.free_blocks,
            "num_running": phase.num_running,
        }
    return row


def _span_data(span: RunningSpan) -> dict[str, Any]:
    return {
        "start": span.start_s,
        "end": span.end_s,
        "resumed": span.admitted.resumed,
        "prefix_hit_tokens": span.admitted.num_hit_tokens,
        "chunks": span.chunks,
        "num_output_tokens": span.num_output_tokens,
        "recomputed_tokens": span.recomputed_tokens,
        "rehit_tokens": span.rehit_tokens,
        "preempted": None if span.preempted is None else span.preempted._asdict(),
        "lost_tokens": None if span.preempted is None else span.num_computed_tokens,
    }


def run_data(found: Findings) -> dict[str, Any]:
    """Describe the findings of a whole run."""
    p, total_s = found.preemptions, found.causes.total_s
    return {
        "num_requests": found.num_requests,
        "num_unfinished": found.num_unfinished,
        **({"unanswered": dict(sorted(found.unanswered.items()))} if found.unanswered else {}),
        **({"refusals": dict(sorted(found.refusals.items()))} if found.refusals else {}),
        "num_steps": found.num_steps,
        "spent": found.spent_s,
        "waiting": total_s,
        "own_turn": found.causes.own_turn_s,
        "causes": [
            {
                "reason": reason,
                "waiting": seconds,
                "share": seconds / total_s if total_s else 0.0,
                "num_requests": found.causes.num_requests[reason],
            }
            for reason, seconds in found.causes.ordered
        ],
        "worst_waits": [
            {
                "request_id": entry.request.request_id,
                "start": entry.wait.start_s,
                "end": entry.wait.end_s,
                "waiting": entry.seconds,
                "by_reason": entry.by_reason,
                "longest_head": entry.longest_head,
                "longest_head_waiting": entry.longest_head_s,
                "num_passed_by": len(entry.passed_by),
            }
            for entry in found.worst
        ],
        "preemptions": {
            "num": p.num,
            "num_requests": len(p.victims),
            "num_self": p.num_self,
            "recomputed_tokens": p.recomputed_tokens,
            "rehit_tokens": p.rehit_tokens,
            "computed_tokens": p.computed_tokens,
            "victims": dict(sorted(p.victims.items())),
            "for_requests": dict(sorted(p.for_requests.items())),
        },
        "suggestions": found.suggestions,
        **_drafts_data(found.drafts),
    }
