"""The real world: torch where the graph asks for a backend. Never imports `sim`."""

if __name__ != "sundog.runtime":  # Python found this folder by itself: each module would exist twice.
    raise ImportError(f"{__name__} is a folder of Sundog's source: import sundog.runtime")
