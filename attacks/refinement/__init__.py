"""Attacks that start from the guess of another attack and undo a defence in it."""
