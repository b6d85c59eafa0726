"""Transfers of prompts' keys and values between the caches of engine processes."""
