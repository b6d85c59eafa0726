"""The graph: actors, their messages and the pure core they are shells around.

Neither world is imported here: `runtime` makes the graph real, `sim` makes it hypothetical.
"""

if __name__ != "sundog.actors":  # Python found this folder by itself: each module would exist twice.
    raise ImportError(f"{__name__} is a folder of Sundog's source: import sundog.actors")
