"""Actors of a replica: Scheduler, KVCacheManager, Executor and Runners, which start and end together.

`backend.py` is the interface to the worlds: a Runner executes steps on any object with `load` and `execute`.
"""
