"""Metrics: each is declared once, in a file of this folder, and read by clients, server, rows and report."""
