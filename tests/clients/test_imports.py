"""What must import on a machine without Flower, Ray and Opacus (a GPU node with PyTorch alone)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
for name in ("flwr", "ray", "opacus", "flwr_datasets"):
    sys.modules[name] = None
import attacks, defenses, clients.federated.client, clients.scoring.audit
import clients.models.classifiers, clients.data.datasets, clients.data.partitions
print("imported")
"""


@pytest.mark.long
def test_training_attacks_and_defenses_need_neither_flower_nor_ray_nor_opacus() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", CODE], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n", done.stderr
