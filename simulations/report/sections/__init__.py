"""Sections of the report for one scenario each, found by their place in this folder."""
