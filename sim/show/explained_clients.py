"""A run that only clients saw, explained as far as they can."""

from collections import Counter

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.explain.clients import UNKNOWN, SeenRequest, longest_waits
from sim.show.console import print_table


def print_seen_run(console: Console, name: str, requests: list[SeenRequest], top: int) -> None:
    """How requests ended, and the longest waits for a first token."""
    ends = Counter(request.error or request.reason or "unfinished" for request in requests)
    words = ", ".join(f"{count:,} {end}" for end, count in ends.most_common())
    console.print(f"{name}: {len(requests):,} requests as clients saw them: {words}", markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="the longest waits for a first token")
    for head in ("request", "TTFT ms", "due at s", "prompt", "hits", "waiting", "streaming"):
        table.add_column(head, justify="left" if head == "request" else "right")
    for each in longest_waits(requests, top):
        table.add_row(
            escape(each.request_id),
            f"{(each.ttft_s or 0.0) * 1e3:,.1f}",
            f"{each.due_s:,.3f}",
            f"{each.num_prompt_tokens:,}",
            "–" if each.prefix_hit_tokens is None else f"{each.prefix_hit_tokens:,}",
            f"{each.num_waiting:,}",
            f"{each.num_streaming:,}",
        )
    print_table(console, table)
    console.print("waiting and streaming: other requests when it was due, without and with a first token")
    console.print(UNKNOWN, markup=False)


def print_seen_request(console: Console, each: SeenRequest) -> None:
    """One request, instant by instant."""
    lines = [
        (each.due_s, f"due, beside {each.num_waiting:,} that wait and {each.num_streaming:,} that stream")
    ]
    if each.sent_s is not None:
        lines.append((each.sent_s, f"sent, {each.num_prompt_tokens:,} tokens"))
    if each.first_token_s is not None:
        lines.append((each.first_token_s, f"first token, {each.ttft_s:,.3f} s after it was due"))
    if each.end_s is not None:
        lines.append((each.end_s, f"{each.error or each.reason}, {each.num_output_tokens:,} tokens"))
    console.print(each.request_id, style="bold", markup=False)
    for at_s, text in lines:
        console.print(f"{at_s:12,.3f} s  {text}", markup=False)
    console.print(UNKNOWN, markup=False)
