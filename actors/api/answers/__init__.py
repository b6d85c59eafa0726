"""Answers read from the engine, and the shapes in which clients get them, whole or streamed."""
