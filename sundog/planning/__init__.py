"""Search for the cheapest fleet: trials of a fleet on a sample of the workload, and the report."""
