"""A recording of an app that trains a vision transformer, and the verdict on it."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from timm.models.vision_transformer import VisionTransformer

from strategies.recording.strategy import RecordingStrategy
from tests.lines import read_lines
from tests.simulations.external_app.recorded.recordings import RATE, Torch, invoke, page_of

SOURCE = """
import torch
from timm.models.vision_transformer import VisionTransformer

SETTINGS = dict(img_size=28, patch_size=4, in_chans=1, embed_dim=64, depth=2, num_heads=2, mlp_ratio=2.0)

def Net(num_classes):
    torch.manual_seed(3)
    return VisionTransformer(num_classes=num_classes, **SETTINGS)
"""


def test_the_pictures_behind_single_steps_are_readable(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    (tmp_path / "originals").mkdir()
    model = VisionTransformer(
        img_size=28, patch_size=4, in_chans=1, num_classes=10, embed_dim=64, depth=2, num_heads=2, mlp_ratio=2.0
    )
    grid = Torch(model, 1, 1, tmp_path / "originals", True, 16)
    strategy = RecordingStrategy(FedAvg(fraction_evaluate=0.0), tmp_path / "rec")
    strategy.start(grid, grid.arrays(), num_rounds=1, train_config=ConfigRecord({"lr": RATE}))  # type: ignore[arg-type]
    options = {"model": f"{tmp_path / 'net.py'}:Net", "originals": tmp_path / "originals", "auxiliary": "mnist-5k"}
    out, attack = tmp_path / "out", "PatchEmbeddingInversion(); LabelInference()"
    result = invoke(tmp_path / "rec", "--local-steps", 1, out=out, attack=attack, **options)
    assert result.exit_code == 0, result.output
    rows = read_lines(out / "rows.jsonl")
    scores = {(row["attack"].partition("(")[0], row["metric"]): row for row in rows if row["role"] == "attack"}
    assert scores["PatchEmbeddingInversion", "psnr"]["n"] == 16
    assert scores["PatchEmbeddingInversion", "psnr"]["value"] > 30.0
    assert scores["LabelInference", "label-accuracy"]["value"] == 1.0
    text = page_of(out)
    print(result.output)
    assert "recovered 16 of 16 guessed images" in text
    assert "readable" in text
