"""fedveil."""
