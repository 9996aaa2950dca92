"""What training and judging a model takes, in every scenario."""
