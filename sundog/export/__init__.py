"""Export of policies to other engines: `sundog export`."""
