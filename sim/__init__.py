"""The hypothetical world: a virtual clock and a cost model. Never imports `runtime` or torch."""
