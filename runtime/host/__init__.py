"""The process's own memory, threads and imports."""
