"""`sundog explain`: why requests waited, who was preempted for whom, and what that cost.

It reads what a run left behind, `journal.jsonl.gz` of any world or a log of scheduling decisions
in the golden format, and folds it into the lives of the requests; nothing is simulated again.

    record.py    lines of a journal -> header, arrivals, steps
    decisions.py lines of a log     -> the same
    history.py   arrivals, steps    -> one life per request, one queue per replica (lives.py)
    phases.py    a life             -> phases that tile it, each with its cause
    findings.py  the whole run      -> worst waits, causes (causes.py), preemptions, suggestions
    page.py, run_page.py, data.py   -> what people and programs read
"""
