"""Rows grouped into studies and cells, with scores, controls and null baselines."""
