"""Memory, threads and imports of this process."""
