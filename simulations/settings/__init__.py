"""Settings of all scenarios: names, defaults, meanings, ranges. Nothing here imports torch, so that errors appear at once."""
