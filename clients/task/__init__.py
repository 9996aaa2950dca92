"""The server's orders to a client, and the client's examples for them."""
