"""Data sets: reading them, and partitioning them over clients."""
