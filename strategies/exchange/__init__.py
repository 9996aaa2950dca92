"""Messages to nodes and their replies, and what of these is accepted."""
