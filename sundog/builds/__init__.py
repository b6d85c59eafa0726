"""Deployments of the commands, made from their options: simulated, emulated and real ones."""
