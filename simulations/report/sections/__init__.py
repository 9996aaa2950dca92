"""Sections of the report that one scenario has for itself: a folder each, found by being here."""
