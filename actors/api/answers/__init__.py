"""What clients get: answers as they are read, and the shapes of whole ones and of the chunks of a stream."""
