"""The actors of a replica: Scheduler, KVCacheManager, Executor and Runners, which start and end together.

`backend.py` is the seam to the worlds: whatever has `load` and `execute` computes the steps of a Runner.
"""
