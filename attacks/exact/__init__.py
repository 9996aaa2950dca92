"""Attacks that solve for what a linear layer saw: exact, or independent components, where the gradient's structure allows it."""
