"""Searching for a defence's settings before any client trains: which are private, and which a model still learns from."""
