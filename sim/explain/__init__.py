"""`sundog explain`: why requests waited, which were preempted for which, and what that cost.

It reads a run's `journal.jsonl.gz`, of any world, and folds it into a history of each request; nothing is
simulated again.

    journal_reader.py  lines of a journal -> header, arrivals, steps
    history.py         arrivals, steps    -> a history per request, a queue per replica
    phases.py          a history          -> phases that tile it, each with its cause
    findings.py        the whole run      -> worst waits, causes, preemptions, suggestions
    data.py            both               -> JSON; sim/show/ has the pages for people
"""
