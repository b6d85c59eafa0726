"""What a server counts while it runs: the numbers behind /metrics, the log lines and the live page."""
