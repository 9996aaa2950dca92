"""Defences of gradients and updates."""
