"""Attacks that learn from simulated updates of the server's own images."""
