"""Models that make a vector of a text: how a folder says so, the pass, and the backend that serves it."""
