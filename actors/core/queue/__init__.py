"""Waiting and running requests, and their order under a policy."""
