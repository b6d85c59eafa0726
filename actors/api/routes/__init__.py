"""A file for each family of routes: each gives a blueprint, bound to what it is lent."""
