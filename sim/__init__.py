"""Simulation: the graph on a virtual clock, with a cost model in place of the GPU.

It never imports `runtime` or torch. `replay.py` runs a trace, `clock.py` is the virtual clock, `oracle.py`
knows the lengths of answers, `backend.py` lets modelled time pass. docs/house.md has the order of packages.

Example:
    >>> import trio
    >>> from sundog.sim.clock import run_virtual
    >>> async def an_hour():
    ...     await trio.sleep(3600)
    ...     return trio.current_time()
    >>> run_virtual(an_hour)
    3600.0
"""

if __name__ != "sundog.sim":  # Python found this folder by itself: each module would exist twice.
    raise ImportError(f"{__name__} is a folder of Sundog's source: import sundog.sim")
