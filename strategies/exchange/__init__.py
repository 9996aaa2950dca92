"""Messages to nodes, their replies, and the checks of these."""
