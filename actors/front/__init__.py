"""The front of the engine: from a prompt to a submitted request, from tokens to a stream of text."""
