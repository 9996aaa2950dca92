"""Training and evaluation of a model, for every scenario."""
