"""What clients get: the shapes of whole answers and of the chunks of a stream."""
