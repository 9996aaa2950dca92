"""Where a node's random draws start, its secret, and what its operator lets it answer."""
