"""A curious server of anybody's own Flower app."""
