"""Made-up workloads from a seed: who asks when, how much, after what, on whose behalf.

Every random quantity draws from a stream of its own name, so that changing one (another length
distribution, say) leaves the others as they were: two runs can meet the same arrivals.
"""
