"""Attacks that train a generator against the global model."""
