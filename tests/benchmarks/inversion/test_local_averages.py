"""The cells of clients that keep their running averages: what they send, and which images serve for what."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "inversion"))
import local_averages

from attacks.gradient.trial_gradients.batch_statistics import sent_statistics
from attacks.observations import AttackError


def test_clients_send_no_averages_and_the_server_s_images_are_its_own() -> None:
    cell, fresh = (local_averages.KeptCell("resnet20:train:photos:1", 0, 2, True, epochs) for epochs in (1, 0))
    with pytest.raises(AttackError, match="no running averages"):
        sent_statistics(cell.seen[0])
    own = {tuple(image.flatten().tolist()) for image in cell.knowledge.auxiliary.images}
    attacked = [tuple(image.flatten().tolist()) for image in torch.cat([cell.truth, cell.others])]
    assert len(own) > 100
    assert not own.intersection(attacked)
    # Training moved the averages; the attacked update belongs to the trained network.
    trained, drawn = (dict(one.seen[0].model.named_buffers())["1.running_mean"] for one in (cell, fresh))
    assert trained.any()
    assert not drawn.any()
    assert any(not torch.equal(cell.seen[0].update[name], value) for name, value in fresh.seen[0].update.items())
