"""Models: closed-form sizes, seeds, and gradients checked against slow references."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from clients.models.classifiers import ModelError, build_model, model_names, replace_batch_norm
from clients.models.library import group_norm

Shape = tuple[int, int, int]
WIDTHS = {"mlp": 8, "cnn": 0, "lenet": 0, "convnet": 4, "resnet20": 0, "vgg_small": 4, "vit_lite": 8}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def build(name: str, shape: Shape = (3, 32, 32), **changes: object) -> nn.Module:
    return build_model(name, **{"num_classes": 10, "input_shape": shape, **changes})  # type: ignore[arg-type]


def test_every_model_maps_images_of_any_shape_to_logits() -> None:
    for name in (*(WIDTHS.keys() - {"vit_lite"}), "torchvision:resnet18", "timm:test_efficientnet"):
        for shape, norm in (((1, 28, 28), "group"), ((3, 31, 45), "batch")):
            model = build(name, shape, norm=norm, num_classes=7)
            assert norm == "batch" or not any(isinstance(module, _BatchNorm) for module in model.modules()), name
            assert model.training, name
            assert model(torch.rand(2, *shape)).shape == (2, 7), (name, shape, norm)


def widths(model: nn.Module, kind: type[nn.Module]) -> list[int]:
    return [m.in_features if kind is nn.Linear else m.out_channels for m in model.modules() if isinstance(m, kind)]


def test_models_have_the_published_sizes() -> None:
    # McMahan et al. 2017, section 3: 199,210 parameters of 2NN for digits of 28 x 28 pixels.
    assert count(build("mlp", (1, 28, 28))) == 199_210
    assert widths(build("mlp", width=7), nn.Linear) == [3072, 7, 7]
    for channels, height, width in ((1, 28, 28), (3, 32, 32), (3, 31, 45)):  # LeNet of Deep Leakage from Gradients
        after = math.ceil(math.ceil(height / 2) / 2) * math.ceil(math.ceil(width / 2) / 2)
        convolutions = (channels * 25 + 1) * 12 + 2 * (12 * 25 + 1) * 12
        assert count(build("lenet", (channels, height, width))) == convolutions + (12 * after + 1) * 10
    # 269,722 with parameter-free shortcuts (the 0.27 M of He et al.), and two 1x1 projections with their normalisation.
    assert count(build("resnet20")) == 269_722 + (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64)
    wide = [module for module in build("resnet20", width=4).modules() if isinstance(module, nn.Conv2d)]
    assert [wide[0].out_channels, wide[-1].out_channels] == [64, 256]
    assert len([module for module in wide if module.kernel_size == (3, 3)]) == 19
    for width in (0, 16):
        model, w = build("convnet", width=width), width or 64
        assert widths(model, nn.Conv2d) == [w, 2 * w, 2 * w, *[4 * w] * 5]
        assert widths(model, nn.Linear) == [36 * w]
    small = build("vgg_small", (1, 56, 64), width=3)
    assert (widths(small, nn.Conv2d), widths(small, nn.Linear)) == ([3, 3, 6, 6, 12, 12], [12 * 7 * 8, 24])
    # Hassani et al. 2021, Table 1, counts 3.72 million for 10 classes of 32 x 32 pixels.
    lite = build("vit_lite")
    assert round(count(lite) / 1e6, 2) == 3.72
    assert [tuple(one.weight.shape) for one in lite.modules() if isinstance(one, nn.Conv2d)] == [(256, 3, 4, 4)]
    assert build("vit_lite", (1, 28, 20), width=8)(torch.rand(2, 1, 28, 20)).shape == (2, 10)


@pytest.mark.numeric
def test_lenet_weights_and_biases_are_uniform() -> None:
    model = build("lenet", num_classes=100)
    values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert values.abs().max() <= 0.5
    # 85,000 draws: five standard errors of the mean and of the variance (uniform kurtosis 9/5).
    assert abs(values.mean()) < 5 * (1 / 12 / len(values)) ** 0.5
    assert abs(values.var() - 1 / 12) < 5 * (1 / 12) * (0.8 / len(values)) ** 0.5
    assert all(bias.abs().max() > 0 for name, bias in model.named_parameters() if name.endswith("bias"))


def test_weights_depend_on_the_seed_alone() -> None:
    for name in ("lenet", "resnet20", "torchvision:resnet18", "timm:test_vit"):
        torch.manual_seed(1)
        first, before = build(name, seed=3).state_dict(), torch.get_rng_state()
        second, other = (build(name, seed=seed).state_dict() for seed in (3, 4))
        assert torch.equal(torch.get_rng_state(), before)
        assert all(torch.equal(first[key], second[key]) for key in first)
        assert any(not torch.equal(first[key], other[key]) for key in first)


def test_groups_divide_the_channels_and_erase_no_map_of_one_pixel() -> None:
    for channels in (1, 2, 3, 7, 16, 20, 24, 48, 64, 96, 100, 256, 1000):
        norm = group_norm(channels)
        assert norm.num_groups <= 32, channels
        assert channels % norm.num_groups == 0, channels
        assert norm.num_groups == 1 or channels // norm.num_groups >= 4, channels
    assert group_norm(16)(torch.randn(2, 16, 1, 1)).abs().max() > 0.5


def test_replacing_batch_norm_keeps_scale_shift_and_fused_activation() -> None:
    from timm.layers import BatchNormAct2d

    fused, plain = BatchNormAct2d(24), nn.BatchNorm2d(24)
    features = torch.randn(2, 24, 5, 5)
    for layer in (fused, plain):
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    for layer, activation in ((fused, torch.relu), (plain, lambda x: x)):
        # 24 channels: the largest divisor up to 24 / 4.
        expected = activation(F.group_norm(features, 6, layer.weight, layer.bias, layer.eps))
        replaced = replace_batch_norm(nn.Sequential(layer))
        assert torch.allclose(replaced(features), expected, atol=1e-6)
    assert not list(replace_batch_norm(nn.Sequential(nn.BatchNorm1d(8, affine=False))).parameters())


@pytest.mark.filterwarnings("ignore")
def test_gradients_per_example_by_opacus_are_those_of_a_loop() -> None:
    from opacus import GradSampleModule

    images, labels = torch.rand(3, 3, 16, 16), torch.tensor([0, 3, 9])
    for name, width in WIDTHS.items():
        model = build(name, (3, 16, 16), width=width)
        slow = []
        for image, label in zip(images, labels, strict=True):
            loss = F.cross_entropy(model(image[None]), label[None])
            slow.append(torch.autograd.grad(loss, list(model.parameters())))
        hooked = GradSampleModule(model, loss_reduction="sum")
        F.cross_entropy(hooked(images), labels, reduction="sum").backward()
        for index, (key, parameter) in enumerate(model.named_parameters()):
            expected = torch.stack([gradients[index] for gradients in slow])
            assert (parameter.grad_sample - expected).abs().max() <= 1e-4 * expected.abs().max(), (name, key)


def test_a_size_that_does_not_fit_is_answered_with_the_next_that_does() -> None:
    for name, fits in {"cnn": 16, "convnet": 9, "vgg_small": 8, "vit_lite": 32, "squeezenet1_1": 17}.items():
        with pytest.raises(ModelError, match=f"{fits}x{fits}"):
            build(name, (3, fits - 1, fits - 1))
        assert build(name, (3, fits, fits)).eval()(torch.rand(1, 3, fits, fits)).shape == (1, 10), name
    # timm itself builds this network, and its single patch sees 16x16 of the 28x28 pixels.
    with pytest.raises(ModelError, match="margin"):
        build("timm:vit_tiny_patch16_224", (1, 28, 28))


def test_what_cannot_be_built_is_refused_with_a_reason(subtests: pytest.Subtests) -> None:
    for name, changes, message in (
        ("resnet_18", {}, "did you mean 'torchvision:resnet18'"),
        ("hf-hub:timm/resnet18", {}, "unknown model 'hf-hub:timm/resnet18'"), ("mlp", {"width": 4097}, "1 to 4096"),
        ("lenet", {"width": 2}, "one width"), ("resnet20", {"width": 17}, "1 to 16"),
        ("convnet", {"width": -1}, "1 to 1024"), ("vit_lite", {"width": 30}, "multiples of 4 up to 1024"),
        ("lenet", {"norm": "layer"}, "'batch', 'group'"), ("lenet", {"num_classes": 1}, "at least 2"),
        ("lenet", {"input_shape": (3, 0, 4)}, "each at least 1"),
    ):  # fmt: skip
        with subtests.test(message, name=name), pytest.raises(ModelError, match=message):
            build(name, **changes)
    assert {"mlp", "cnn", "lenet", "convnet", "resnet20", "vgg_small", "vit_lite"} <= set(model_names())
