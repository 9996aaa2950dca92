"""Attacks that match gradients, and what they are made of."""
