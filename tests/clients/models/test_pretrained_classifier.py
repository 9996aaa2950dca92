"""Pretrained convolutional classifiers: matched by order, with another last layer, and nothing but tensors is read."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clients.models.classifiers import ModelError, build_model
from clients.models.pretrained_classifier import load_classifier


def build(
    classes: int, channels: int = 3, seed: int = 0, norm: str = "batch", name: str = "efficientnet_lite0"
) -> nn.Module:
    return build_model(name, num_classes=classes, input_shape=(channels, 32, 32), norm=norm, seed=seed).eval()


def saved(path: Path, model: nn.Module, **changes: Tensor) -> str:
    """The weights under other names, as a port to another library has them, without what normalisation counts."""
    weights = {name: value for name, value in model.state_dict().items() if "num_batches" not in name}
    torch.save({f"port.{number}": value for number, value in enumerate(weights.values())} | changes, path)
    return str(path)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_port_under_other_names_answers_as_the_original(tmp_path: Path, images: Tensor) -> None:
    original, model = build(7, seed=1), build(7, seed=2)
    assert not torch.allclose(model(images), original(images))
    assert load_classifier(model, saved(tmp_path / "port.pt", original))
    assert torch.equal(model(images), original(images))


def test_another_number_of_classes_leaves_the_last_layer_alone(tmp_path: Path, images: Tensor) -> None:
    original, model = build(7, seed=1), build(2, seed=2)
    before = {name: value.clone() for name, value in model.classifier.state_dict().items()}
    assert not load_classifier(model, saved(tmp_path / "port.pt", original))
    assert torch.equal(model.forward_features(images), original.forward_features(images))
    assert all(torch.equal(value, before[name]) for name, value in model.classifier.state_dict().items())


def test_a_bias_alone_is_no_last_layer(tmp_path: Path) -> None:
    original, model = (
        nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)),
    )
    wide = nn.Linear(4, 2)
    path = saved(tmp_path / "wide.pt", original, **{"port.2": wide.weight.detach()})
    before = model[1].bias.detach().clone()
    load_classifier(model, path)
    assert torch.equal(model[0].weight, original[0].weight)
    assert torch.equal(model[1].bias, before)


def test_a_grey_image_is_three_equal_channels(tmp_path: Path) -> None:
    original, model = build(7, seed=1), build(7, channels=1, seed=2)
    load_classifier(model, saved(tmp_path / "port.pt", original))
    grey = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(model(grey), original(grey.expand(-1, 3, -1, -1)), atol=1e-4)


def test_safetensors_are_read(tmp_path: Path, images: Tensor) -> None:
    from safetensors.torch import save_file

    original, model = build(7, seed=1, name="resnet20"), build(7, seed=2, name="resnet20")
    kept = {name: value for name, value in original.state_dict().items() if "num_batches" not in name}
    save_file(kept, tmp_path / "port.safetensors")
    load_classifier(model, str(tmp_path / "port.safetensors"))
    assert torch.equal(model(images), original(images))
    # Without the names nothing tells which tensor is which.
    save_file({f"port.{number}": value for number, value in enumerate(kept.values())}, tmp_path / "port.safetensors")
    with pytest.raises(ModelError, match=r"other names than the model \(0.weight is missing\), and keeps no order"):
        load_classifier(model, str(tmp_path / "port.safetensors"))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "port.pt", build(7))
    torch.save(build(7).state_dict(), tmp_path / "named.pt")
    with pytest.raises(ModelError, match=r"247 tensors, the model .*; set norm to batch"):
        load_classifier(build(7, norm="group"), str(tmp_path / "named.pt"))
    # Nothing says that statistics are what is too many.
    torch.save(build(7, name="resnet20", norm="group").state_dict(), tmp_path / "longer.pt")
    with pytest.raises(ModelError, match=r"tensors, the model \d+$"):
        load_classifier(build(7, name="vgg_small", norm="group"), str(tmp_path / "longer.pt"))
    with pytest.raises(ModelError, match=r"247 tensors, the model \d+$"):
        load_classifier(build(7, name="torchvision:resnet50"), path)
    other = saved(tmp_path / "other.pt", build(7), **{"port.0": torch.zeros(32, 3, 5, 5)})
    with pytest.raises(
        ModelError, match=r"port.0 has shape \(32, 3, 5, 5\), expected \(32, 3, 3, 3\) of conv_stem.weight"
    ):
        load_classifier(build(7), other)


def test_an_order_that_cannot_be_the_models_is_refused_and_any_other_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(7, name="resnet20")
    own = {name: value for name, value in model.state_dict().items() if "num_batches" not in name}
    # All tensors of a normalisation have the same shape.
    swapped = list(own)
    at = next(place for place, name in enumerate(swapped) if own[name].dim() == 1)
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    for names, file in ((list(own), "good.pt"), (swapped, "swapped.pt")):
        torch.save({f"port.{name}": own[name] for name in names}, tmp_path / file)
    assert load_classifier(build(7, seed=3, name="resnet20"), str(tmp_path / "good.pt"))
    assert "matched by their order" in caplog.text
    with pytest.raises(ModelError, match=r"in its order port\.\d+\S*\.bias would be \d+\S*\.weight"):
        load_classifier(model, str(tmp_path / "swapped.pt"))
    caplog.clear()
    torch.save(own, tmp_path / "same.pt")
    assert load_classifier(model, str(tmp_path / "same.pt"))
    assert not caplog.text


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "sprung",))  # type: ignore[return-value]

    (tmp_path / "trap.pt").write_bytes(pickle.dumps(Trap(), protocol=2))
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"weight": torch.tensor([float("nan")])}, tmp_path / "nan.pt")
    (tmp_path / "text.pt").write_text("no pickle")
    torch.save({1: torch.zeros(2)}, tmp_path / "numbers.pt")
    torch.save({"weight": torch.zeros(2, device="meta")}, tmp_path / "meta.pt")
    torch.save({"weight": torch.eye(2).to_sparse()}, tmp_path / "sparse.pt")
    for name, kind in (("whole", torch.int64), ("complex", torch.complex64)):
        torch.save({"weight": torch.zeros(2, dtype=kind)}, tmp_path / f"{name}.pt")
    for name, message in (
        ("text.pt", r"no checkpoint \(it cannot be unpickled\); expected"), ("numbers.pt", "holds a dict, not tensors by name"),
        ("meta.pt", r"in weight \(meta\); expected dense ones"), ("sparse.pt", r"torch.sparse_coo\); expected dense"),
        ("whole.pt", "torch.int64 in weight; expected real"), ("complex.pt", "torch.complex64 in weight; expected real"),
        ("missing.pt", "cannot read"), ("trap.pt", r"holds objects, not only tensors; save model.state_dict"),
        ("list.pt", "holds a list"), ("nan.pt", "NaN or infinite"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=message):
            load_classifier(build(7, name="resnet20"), str(tmp_path / name))
    assert not (tmp_path / "sprung").exists()
