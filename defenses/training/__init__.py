"""Defences of the training itself: DP-SGD with its accounting, adversarial training, optimizers, models."""
