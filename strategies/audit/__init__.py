"""Attacks beside the training, and their scores from the clients."""
