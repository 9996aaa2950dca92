"""The generator of ``ClassGAN``, and random shifts of images."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from defenses.tensors import ImageShape


class ImageGenerator(nn.Module):
    """A class-conditional DCGAN generator: ``latent`` numbers of noise and a class -> an image (C, H, W) in [0, 1].

    A linear layer makes ``2 * width`` maps of a quarter of the image's side; two transposed convolutions (4x4, stride 2) double it
    twice; BatchNorm and ReLU in between, a sigmoid at the end. Weights are N(0, 0.02), as in the paper. Sides that are no multiple
    of 4 are made larger and cropped.

    Source: Radford, Metz, Chintala, "Unsupervised Representation Learning with Deep Convolutional GANs", 2016, section 3. Differs:
    the class, one-hot, is appended to the noise (Mirza and Osindero 2014), and a sigmoid ends the network, since images are in
    [0, 1], not [-1, 1].
    """

    def __init__(
        self, latent: int, num_classes: int, image_shape: ImageShape, width: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        channels, height, side = image_shape
        self.latent, self.num_classes, self.image_shape = latent, num_classes, image_shape
        grid = (2 * width, -(-height // 4), -(-side // 4))
        # Constructors draw weights from the global stream, which belongs to the caller.
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.Sequential(
                nn.Linear(latent + num_classes, grid[0] * grid[1] * grid[2], bias=False),
                nn.Unflatten(1, grid),
                nn.BatchNorm2d(2 * width),
                nn.ReLU(),
                nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.ConvTranspose2d(width, channels, 4, 2, 1),
            )
        for layer in self.layers:
            if isinstance(layer, nn.Linear | nn.ConvTranspose2d):
                nn.init.normal_(layer.weight, std=0.02, generator=generator)
        last = self.layers[-1]
        assert isinstance(last, nn.ConvTranspose2d)
        assert last.bias is not None
        nn.init.zeros_(last.bias)

    def forward(self, noise: Tensor, classes: Tensor) -> Tensor:
        """Maps noise (B, latent) and classes (B,) int64 to images (B, C, H, W) in [0, 1]."""
        images: Tensor = self.layers(torch.cat([noise, F.one_hot(classes, self.num_classes).to(noise)], 1)).sigmoid()
        return images[..., : self.image_shape[1], : self.image_shape[2]]

    def draw(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """Images (B, C, H, W) of classes (B,) from fresh standard normal noise, on the device of the weights."""
        like = next(self.parameters())
        noise = torch.randn(len(classes), self.latent, generator=generator).to(like)
        images: Tensor = self(noise, classes.to(like.device))
        return images


def random_shift(images: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Moves a batch (B, C, H, W) by up to ``pixels`` in each direction, all images alike; border pixels are repeated."""
    if not pixels:
        return images
    down, across = torch.randint(2 * pixels + 1, (2,), generator=generator).tolist()
    padded = F.pad(images, (pixels,) * 4, mode="replicate")
    return padded[..., down : down + images.shape[-2], across : across + images.shape[-1]]
