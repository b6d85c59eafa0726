"""Functions and results of `import sundog` (docs/python.md)."""
