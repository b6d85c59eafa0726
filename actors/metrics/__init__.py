"""Metrics of a server: for /metrics, the log and the live page."""
