"""The real world: torch where the graph asks for a backend. Never imports `sim`."""
