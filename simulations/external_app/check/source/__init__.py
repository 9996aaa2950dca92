"""What an app's source says of its training. The source is parsed, and never run."""
