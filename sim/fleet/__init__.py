"""Fleets with unequal or changing engines: pools and links, faults, autoscaling."""
