"""The console: output, input files and exit of commands."""
