"""pytorchexample: an app of Flower and PyTorch, as Flower's quickstart writes it."""
