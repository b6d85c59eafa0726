"""What a client asks of one request: sampling, constraints, log probabilities, adapters."""
