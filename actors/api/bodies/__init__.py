"""The bodies that clients may send: their fields and bounds, and the fields that are refused by name."""
