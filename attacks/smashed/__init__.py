"""Attacks on smashed data, the activations that cross the wire in split learning."""
