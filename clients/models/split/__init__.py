"""Models that are cut in two: the halves, and what an adversary makes of them."""
