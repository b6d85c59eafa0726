"""Policies on their way to other engines: `sundog export`."""
