"""Attacks that solve for a layer's inputs: exact, or by independent components, where the gradient's structure allows."""
