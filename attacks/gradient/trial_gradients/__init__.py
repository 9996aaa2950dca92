"""Gradients of trial images, many at a time: exact, by finite differences, over local steps; and their memory."""
