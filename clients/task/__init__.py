"""What a server asks of a client, and the examples that a client has for it."""
