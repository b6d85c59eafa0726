"""Families of routes, one file each: each makes a blueprint bound to its context."""
