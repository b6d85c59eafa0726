"""The numbers that a server counts: those behind /metrics, the log lines and the live page."""
