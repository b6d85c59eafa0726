"""Text to tokens and back, and the chat template between them; without torch."""
