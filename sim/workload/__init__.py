"""Made-up workloads from a seed: which requests come when, how long, after which, of which tenant.

Every random quantity draws from a stream of its own name, so that changing one (another length
distribution, say) leaves the others as they were: two runs can meet the same arrivals.
"""
