"""The hypothetical world: a virtual clock and a cost model. Never imports `runtime` or torch."""

if __name__ != "sundog.sim":  # Python found this folder by itself: each module would exist twice.
    raise ImportError(f"{__name__} is a folder of Sundog's source: import sundog.sim")
