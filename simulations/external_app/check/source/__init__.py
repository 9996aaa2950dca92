"""Facts about training in an app's source. The source is parsed, and never run."""
