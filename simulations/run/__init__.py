"""Runs from a request to the end: in this process, for several seeds, side by side."""
