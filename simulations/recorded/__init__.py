"""Attacks on updates that somebody recorded, without a simulation."""
