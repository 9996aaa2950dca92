"""A client's scoring of guesses about its own examples: the originals stay at the client."""
