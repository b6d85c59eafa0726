"""A model's layers shared among processes: what each rank holds, and what the ranks say to each other."""
