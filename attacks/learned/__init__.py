"""Attacks that learn from simulated updates of the server's own images, or train a generator against clients' models."""
