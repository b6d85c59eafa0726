"""The torch engine below the actors: the loaded model, its requests, and the backend that answers steps.

`backend.py` implements the seam of `actors/engine/backend.py`. Each step is launched (`engine.py`), with what
the model knows of its requests (`requests.py`), and may be followed by drafts (`speculator.py`).
"""
