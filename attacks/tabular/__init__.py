"""Attacks on the smashed data of tables."""
