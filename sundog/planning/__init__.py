"""Fleets for a workload: trials of a fleet on a draw, the search for the cheapest, and the report."""
