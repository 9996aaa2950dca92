"""Before a run: memory, and refusals of runs that cannot succeed."""
