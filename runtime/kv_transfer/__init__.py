"""Keys and values of prompts on their way from the cache of one engine process to that of another."""
