"""One replica: Scheduler, KVCacheManager, Executor and Runners, which live and die together."""
