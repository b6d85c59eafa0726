"""Fleets that are not equal engines at rest: pools and the links between them, faults, autoscaling."""
