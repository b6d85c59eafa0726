"""The deployments that commands run: simulated, emulated and real ones, made from their options."""
