"""Attacks that start from the guess of another and undo a defence in it."""
