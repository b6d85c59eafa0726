"""A file for each family of routes: each makes a blueprint, bound to its context."""
