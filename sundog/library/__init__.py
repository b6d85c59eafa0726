"""The functions and results of `import sundog` (docs/python.md)."""
