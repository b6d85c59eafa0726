"""Real engines: torch, their processes, and a client that measures servers.

Nothing here imports `sim`. `engine/` computes the steps of the graph, `model/` and `attention/` are the
forward pass, `sampling/` and `structured/` choose tokens, `worker/`, `wire/` and `ranks/` are its processes.
"""

if __name__ != "sundog.runtime":  # Python found this folder by itself: each module would exist twice.
    raise ImportError(f"{__name__} is a folder of Sundog's source: import sundog.runtime")
