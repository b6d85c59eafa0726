"""Parameters of one request: sampling, constraints, log probabilities, adapters."""
