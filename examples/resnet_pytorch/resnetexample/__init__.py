"""resnetexample: an app of Flower and PyTorch with a ResNet of torchvision and BatchNorm."""
