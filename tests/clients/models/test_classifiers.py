"""Models: closed-form sizes, seeds, gradients against slow references; cuts of them into halves, and adversaries of the halves."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from clients.models.adversaries import AdversaryBuilder
from clients.models.classifiers import ModelError, build_model, model_names, replace_batch_norm
from clients.models.cuts import CUTS, halves
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


def of_three_classes(name: str, norm: str = "batch") -> nn.Module:
    return build_model(name, num_classes=3, input_shape=(3, 32, 32), norm=norm)


SENT = {
    # ADP, section 2.3 of our specification; 512 x 28 x 28 = 401,408 values are the paper's own number.
    "vgg16": (224, [(128, 112, 112), (512, 28, 28), (512, 14, 14)]),
    "resnet50": (224, [(512, 28, 28), (1024, 14, 14), (1024, 14, 14)]),
    # Table 1 of Tan and Le 2019 (EfficientNet-B0), whose stages 3, 4 and 6 these are; the table counts the stem as stage 1.
    "efficientnet_lite0": (224, [(24, 56, 56), (40, 28, 28), (112, 14, 14)]),
    "vgg_small": (56, [(16, 56, 56), (32, 28, 28), (64, 14, 14)]),
    "resnet20": (32, [(16, 32, 32), (32, 16, 16), (64, 8, 8)]),
}


def check_halves(name: str, norm: str) -> None:
    model = of_three_classes(name, norm).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for cut in CUTS[name]:
        client, server = halves(model, name, cut)
        with torch.no_grad():
            features = client(images)
            kept = features.clone()
            assert torch.equal(server(features), model(images)), (name, cut)
        assert features.ndim == 4
        # The features are attacked after they were answered.
        assert torch.equal(features, kept)
        for part in ("parameters", "buffers"):
            found = [id(one) for half in (client, server) for one in getattr(half, part)()]
            assert sorted(found) == sorted(id(one) for one in getattr(model, part)()), (name, cut)
        if name.startswith("vgg"):  # convolutions are counted from one, and the cut is behind the ReLU
            assert sum(isinstance(layer, nn.Conv2d) for layer in client) == int(cut.removeprefix("conv"))
            assert isinstance(client[-1], nn.ReLU)
            assert isinstance(server[0], (nn.MaxPool2d, nn.Conv2d))
    if name == "resnet50":  # bottlenecks are counted from one
        ends = [halves(model, name, cut)[0][-1] for cut in CUTS[name]]
        assert ends == [model.layer2[0], model.layer3[0], model.layer3[4]]
    side, shapes = SENT[name]
    hollow, images = model.to("meta"), torch.zeros(1, 3, side, side, device="meta")
    assert [tuple(halves(hollow, name, cut)[0](images).shape[1:]) for cut in CUTS[name]] == shapes


def test_the_halves_of_small_models_are_the_whole_and_train_it(subtests: pytest.Subtests) -> None:
    for name in ("vgg_small", "resnet20"):
        for norm in ("batch", "group"):
            check_halves(name, norm)
    whole = of_three_classes("vgg_small")
    other = copy.deepcopy(whole)
    images, labels = torch.rand(4, 3, 32, 32), torch.tensor([0, 1, 2, 1])
    client, server = halves(other, "vgg_small", "conv4")
    for forward in (whole, nn.Sequential(client, server)):
        optimizer = torch.optim.SGD(forward.parameters(), 0.1)
        nn.functional.cross_entropy(forward(images), labels).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), other.state_dict().values(), strict=True))
    for training in (True, False):
        halved = halves(whole.train(training), "vgg_small", "conv4")
        assert all(layer.training == training for half in (*halved, whole) for layer in half.modules())
    for name, cut, message in (
        ("lenet", "conv2", "model 'lenet' cannot be cut .* these can: vgg16, resnet50,"),
        ("vgg_small", "conv3", "cut is 'conv3'; vgg_small can be cut at conv2, conv4, conv6"),
        ("vgg_small", "", "cut is ''"),
        *((name, cuts[0], f"Linear is not the model '{name}'") for name, cuts in CUTS.items()),
    ):
        with subtests.test(message), pytest.raises(ModelError, match=message):
            halves(nn.Linear(2, 2), name, cut)


@pytest.mark.long
def test_the_halves_of_large_models_are_the_whole() -> None:
    for name in ("efficientnet_lite0", "vgg16", "resnet50"):
        check_halves(name, "batch")


SMALL_IMAGES = (3, 32, 32)
SMALL = [(name, cut) for name in ("vgg_small", "resnet20") for cut in CUTS[name]]


def test_adversaries_classify_the_features() -> None:
    for name, cut in SMALL:
        for architecture in ["split", "tuned", "full"]:
            model = build_model(name, num_classes=3, input_shape=SMALL_IMAGES).eval()
            features = halves(model, name, cut)[0](torch.rand(2, *SMALL_IMAGES))
            adversary = AdversaryBuilder(name, cut, SMALL_IMAGES, weights=model.state_dict())(architecture, 5, 0)
            assert adversary.training
            assert adversary(features).shape == (2, 5)
            if architecture == "full":
                first = next(layer for layer in adversary.modules() if isinstance(layer, nn.Conv2d))
                assert first.in_channels == features.shape[1]
    # Features that are too small for a whole network are enlarged.
    adversary = AdversaryBuilder("vgg_small", "conv6", (1, 16, 16), width=4)("full", 2, 0)
    small = torch.rand(1, 1, 2, 2)
    assert torch.equal(adversary[0](small)[0, 0], small[0, 0].kron(torch.ones(2, 2)))


def test_weights_are_new_or_those_of_the_server_half_except_for_the_last_layer() -> None:
    for norm in ["batch", "group"]:
        model = build_model("resnet20", num_classes=2, input_shape=SMALL_IMAGES, norm=norm, seed=1)
        _, server = halves(model, "resnet20", "block5")
        builder = AdversaryBuilder("resnet20", "block5", SMALL_IMAGES, norm=norm, weights=model.state_dict())
        known = server.state_dict()
        last = [name for name in known if name.startswith(f"{len(server) - 1}.")]
        assert len(last) == 2
        for architecture, kept in (("tuned", True), ("split", False)):
            built = builder(architecture, 2, 7).state_dict()
            assert built.keys() == known.keys()
            weights = [name for name in known if known[name].ndim == 4]
            assert weights
            assert all(torch.equal(built[name], known[name]) == kept for name in weights)
            assert not torch.equal(built[last[0]], known[last[0]])
        # Training the adversary must not train the attacked model.
        tuned = builder("tuned", 2, 7)
        assert not {p.data_ptr() for p in tuned.parameters()} & {p.data_ptr() for p in model.parameters()}
