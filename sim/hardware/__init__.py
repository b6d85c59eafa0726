"""What a GPU and a model are to a cost model: published figures, read from data files."""
