"""What importing the packages needs and does: no Flower, Ray or Opacus, and only our own app moves to its folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_only_our_own_app_moves_to_its_folder(tmp_path: Path) -> None:
    # An app of another person's writes its model where it was started.
    script = tmp_path / "flwr-simulation"  # the name by which clients/__init__.py knows that a simulation loads it
    for first in (ROOT, tmp_path):
        script.write_text(f"import os, sys\nsys.path.insert(0, {str(first)!r})\nimport clients\nprint(os.getcwd())\n")
        done = subprocess.run(
            [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert Path(done.stdout.strip()).resolve() == first.resolve()


@pytest.mark.long
def test_training_attacks_and_defenses_need_neither_flower_nor_ray_nor_opacus() -> None:
    # A node with a card may have PyTorch alone.
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['flwr', 'ray', 'opacus', 'flwr_datasets']))\n"
        "import attacks; assert not {'scipy', 'skimage'} & set(sys.modules)\n"
        "import defenses, clients.federated.client, clients.scoring.audit\n"
        "import clients.models.classifiers, clients.data.datasets, clients.data.partitions; print('imported')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n", done.stderr
