"""Attacks of an active server: it sends clients a model of its own making in place of the agreed one."""
