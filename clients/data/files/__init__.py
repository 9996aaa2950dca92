"""Data sets that lie in files: arrays, pictures, and how they are decoded."""
