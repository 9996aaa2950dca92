"""Before a run: memory, notices, and refusals of runs that cannot succeed."""
