"""Attacks on who was part of the training."""
