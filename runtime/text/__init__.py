"""Tokenizing and detokenizing, with the chat template; without torch."""
