"""Processes and their machine: memory, Ray, children, the user's own code."""
