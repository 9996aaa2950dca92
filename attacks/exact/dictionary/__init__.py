"""Learning of sparse dictionaries from gradients of layers with a ReLU."""
