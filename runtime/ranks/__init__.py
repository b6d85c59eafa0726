"""Models shared among processes: each rank's share, and communication between ranks."""
