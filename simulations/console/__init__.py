"""The console: what commands print to, how they read files, and how they end."""
