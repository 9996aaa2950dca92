"""An audit of an app's claimed epsilon by canaries in its own training."""
