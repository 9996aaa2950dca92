"""The settings of all scenarios: names, defaults, meanings, ranges. Nothing here imports torch: bad values end at once."""
