"""Attacks that infer sensitive attributes of a person, which are not part of the task."""
