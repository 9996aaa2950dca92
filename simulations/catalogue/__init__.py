"""The output of `fedveil list`."""
