"""The graph: actors, their messages and the pure core they are shells around.

Neither world is imported here: `runtime` makes the graph real, `sim` makes it hypothetical.
"""
