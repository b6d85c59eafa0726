"""The phases of a Scheduler: at any moment it is in one.

    IDLE ---message--> BEGINNING ---plan--> EXECUTING ---result--> BEGINNING, or IDLE without work
                           |                    ^
                           +--plan a run--> RUN +--message--> INTERRUPTED ---result--> (the same)

| phase | what it waits for | a message comes | it ends with |
|---|---|---|---|
| IDLE | a message | `_begin_soon` | |
| BEGINNING | its own BeginStep, later in this instant | is read then | `_begin_step` |
| EXECUTING | the result of the oldest step | is read then | `_end_step` |
| RUN | the result of a run of steps | `_interrupt` | `_end_step` |
| INTERRUPTED | the same, at the run's next step boundary | is read then | `_end_step` |

With async scheduling, a BEGINNING that leaves room in the queue of steps is followed by another, and
each step of a run counts as planned while the one before it runs, so that no message changes the next step:
when the run ends, that next step is planned as it would have been one step earlier, and then the one after
it, which sees every message.
"""

import enum


class Phase(enum.Enum):
    IDLE = "idle"
    BEGINNING = "beginning"
    EXECUTING = "executing"
    RUN = "run"
    INTERRUPTED = "interrupted"
