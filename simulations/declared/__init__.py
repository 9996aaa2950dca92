"""The settings of our scenarios: names, defaults, meanings, ranges. Nothing here imports torch, so that bad values end at once."""
