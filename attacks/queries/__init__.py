"""Attacks on queries: features that a client half sends to the server for a prediction."""
