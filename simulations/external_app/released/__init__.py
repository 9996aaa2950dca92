"""Membership in the training of a final model: by its released weights, or by a table of its predictions."""
