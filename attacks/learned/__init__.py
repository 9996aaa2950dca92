"""Attacks whose networks have learned what an update says of the images behind it."""
