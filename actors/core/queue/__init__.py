"""The waiting and running requests, and the order a policy gives them."""
