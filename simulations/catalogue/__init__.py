"""What `fedveil list` shows."""
