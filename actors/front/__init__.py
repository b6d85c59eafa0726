"""The front of the engine: from a prompt to a submitted request, and from tokens to a stream of text."""
