"""Log of every decision of the Scheduler on a recorded trace: `sundog schedule`.

The Scheduler and the KVCacheManager are the graph's own, on a virtual clock. This package has their
surroundings: a trace by steps, a backend with its outputs, and the log.
"""
