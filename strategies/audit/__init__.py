"""Running attacks beside the training, and having them scored by the clients."""
