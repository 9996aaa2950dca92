"""The start of a node's random draws, its secret, and its operator's policy on requests."""
