"""Before a run: memory, notices, and refusals of what cannot run."""
