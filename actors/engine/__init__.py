"""The actors of a replica: Scheduler, KVCacheManager, Executor and Runners, which start and end together."""
