"""The engine below the actors: requests, the loaded model, and the backend that answers steps."""
