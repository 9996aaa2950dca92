"""Experiments: what to run, the ServerApp that runs it, what it leaves behind, and the command line."""
