"""What attacks that know images are given instead of an observation tells nothing of it."""

import pytest
import torch

from attacks.observations import AttackError
from attacks.uploads.base import UploadedImages
from strategies.audit.runner import silenced


def test_uploaded_images_become_noise_whatever_they_were_and_what_is_no_observation_is_refused() -> None:
    labels = torch.tensor([1, 2])
    for images in (torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 8, 8)):
        found = silenced(UploadedImages(images, labels), torch.Generator().manual_seed(0))
        assert torch.equal(found.labels, labels)
        assert torch.equal(found.images, torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(AttackError, match="str holds neither an update nor images"):
        silenced("tokens", torch.Generator())
