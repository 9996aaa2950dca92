"""Attacks on updates that an app recorded, without a simulation."""
