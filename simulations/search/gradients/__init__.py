"""Gradients of single examples, many at once."""
