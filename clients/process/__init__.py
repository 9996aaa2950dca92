"""Processes and their machine: memory, Ray, children, code of anybody's own."""
