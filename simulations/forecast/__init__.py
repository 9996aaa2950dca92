"""Before a run: costs, memory, notices, and refusals of what cannot run."""
