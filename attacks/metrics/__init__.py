"""Metrics: each is defined once, in a file of this folder, and used by clients, server, rows and report."""
