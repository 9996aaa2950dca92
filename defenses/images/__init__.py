"""Defences of images, before they enter the training."""
