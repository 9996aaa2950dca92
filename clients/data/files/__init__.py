"""Data sets stored in files: arrays, pictures, and their decoding."""
