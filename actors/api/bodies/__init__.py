"""Request bodies: their fields and bounds, and the fields that are refused by name."""
