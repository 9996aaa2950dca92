"""A curious server of an external Flower app."""
