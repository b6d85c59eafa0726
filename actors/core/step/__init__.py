"""A step of the scheduler: plan a batch, then update the requests with its result."""
