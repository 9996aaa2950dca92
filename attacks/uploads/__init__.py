"""Attacks on images that clients upload."""
