"""Attacks on which records were part of the training."""
