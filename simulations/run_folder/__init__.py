"""The folder of a run: rows, lines of files, checkpoints, locks, its configuration and times."""
