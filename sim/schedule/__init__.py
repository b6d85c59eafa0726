"""Every decision of the Scheduler on a recorded trace: `sundog schedule`.

The Scheduler and the KVCacheManager are the graph's own, on a virtual clock. Here is what stands
around them: a trace by steps, a backend that has its outputs, and the log.
"""
