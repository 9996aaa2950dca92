"""Attacks on features that a client half sends to be answered."""
