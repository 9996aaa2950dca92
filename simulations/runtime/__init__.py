"""Processes of a run: Flower's runtime and its guardian, nodes, progress, a grid in one process, trials of own code."""
