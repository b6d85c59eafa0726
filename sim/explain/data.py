"""What the pages say, as data for programs: times in the record's unit, nothing left out."""

from typing import Any

from sim.explain.findings import Findings
from sim.explain.history import History
from sim.explain.lives import Life, Stay
from sim.explain.phases import Phase, phases, totals
from sim.record.journal_rows import Header


def request_data(history: History, life: Life) -> dict[str, Any]:
    """The life of one request, with every phase."""
    found = phases(history, life)
    return {
        "request_id": life.request_id,
        "unit": history.header.unit,
        "replica": life.replica,
        "tenant": life.arrival.tenant,
        "priority": life.arrival.priority,
        "num_prompt_tokens": life.arrival.num_prompt_tokens,
        "num_output_tokens": life.num_output_tokens,
        "arrival": life.arrival.time_s,
        "first_token": life.first_token_s,
        "end": life.end_s,
        "reason": life.reason,
        "totals": totals(found),
        "phases": [_phase_data(phase) for phase in found],
        "admissions": [_stay_data(stay) for stay in life.stays],
    }


def _phase_data(phase: Phase) -> dict[str, Any]:
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


def _stay_data(stay: Stay) -> dict[str, Any]:
    return {
        "start": stay.start_s,
        "end": stay.end_s,
        "resumed": stay.admitted.resumed,
        "prefix_hit_tokens": stay.admitted.num_hit_tokens,
        "chunks": stay.chunks,
        "num_output_tokens": stay.num_output_tokens,
        "recomputed_tokens": stay.recomputed_tokens,
        "rehit_tokens": stay.rehit_tokens,
        "preempted": None if stay.preempted is None else stay.preempted._asdict(),
        "lost_tokens": None if stay.preempted is None else stay.num_computed_tokens,
    }


def run_data(found: Findings, header: Header) -> dict[str, Any]:
    """What a whole run tells."""
    p, total_s = found.preemptions, found.causes.total_s
    return {
        "unit": header.unit,
        "num_requests": found.num_requests,
        "num_unfinished": found.num_unfinished,
        "num_steps": found.num_steps,
        "life": found.life_s,
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
                "request_id": entry.life.request_id,
                "start": entry.wait.start_s,
                "end": entry.wait.end_s,
                "waiting": entry.seconds,
                "by_reason": entry.by_reason,
                "longest_head": entry.longest_head,
                "longest_head_waiting": entry.longest_head_s,
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
    }
