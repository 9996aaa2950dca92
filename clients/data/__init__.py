"""Data sets, how they are read, and how they are dealt out."""
