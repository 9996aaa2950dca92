"""Models of one's own: what a name says is called; what is no classifier is refused, and what is odd is found."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.local_model import shared_tensors
from clients.models.classifiers import ModelError, build_model
from clients.models.own import build_own_model
from clients.secrets.policy import RefusedError, require_own_code

CODE = """
import torch
from torch import nn
from beside import HIDDEN


class Net(nn.Module):
    def __init__(self, num_classes, input_shape):
        super().__init__()
        self.inner = nn.Linear(torch.tensor(input_shape).prod().item(), HIDDEN)
        self.last = nn.Linear(HIDDEN, num_classes)

    def forward(self, images):
        return self.last(torch.sinc(self.inner(images.flatten(1))))


class Does(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, values):
        return self.function(values)


def sequence(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


def zero():
    model = fixed()
    nn.init.zeros_(model[1].weight), nn.init.zeros_(model[1].bias)
    return model


def narrow(**given):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, given["num_classes"]))


needy = lambda depth, heads: fixed()
fixed = lambda: sequence(nn.Linear(64, 10))
soft = lambda num_classes: sequence(nn.Linear(64, num_classes), nn.Softmax(1))
ended = lambda: sequence(nn.Linear(64, 10), Does(torch.sigmoid))
detached = lambda: sequence(nn.Linear(64, 8), Does(lambda values: values.detach() * 1.0), nn.Linear(8, 10))
bare = lambda: sequence(Does(lambda values: values[:, :10]))
instance = fixed()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("HIDDEN = 5\n")
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def built(name: str, **changes: object) -> torch.nn.Module:
    return build_model(name, **{"num_classes": 10, "input_shape": (1, 8, 8), **changes})  # type: ignore[arg-type]


def test_it_is_called_with_what_it_takes_and_weights_follow_from_the_seed(file: Path) -> None:
    one, same, other = (built(f"{file}:Net", seed=seed) for seed in (1, 1, 2))
    assert one(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert torch.equal(one.state_dict()["inner.weight"], same.state_dict()["inner.weight"])
    assert not torch.equal(one.state_dict()["inner.weight"], other.state_dict()["inner.weight"])
    assert built(f"{file}:fixed")(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    narrow = built(f"{file}:narrow", input_shape=(3, 8, 8), num_classes=3)
    assert narrow(torch.zeros(1, 3, 8, 8)).shape == (1, 3)
    assert not any(getattr(module, "inplace", False) for module in narrow.modules())
    assert built("tests.clients.models.test_own:linear")(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def linear(num_classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the folder of a file that is read is added


def test_what_is_no_classifier_is_refused_with_the_reason(file: Path, subtests: pytest.Subtests) -> None:
    for name, why in {
        f"{file}:Nett": "has no 'Nett'; in it are Does, ",
        "/no/such/file.py:Net": "there is no file /no/such/file.py",
        "no.such.module:Net": "no.such.module cannot be imported: ModuleNotFoundError",
        f"{file}:needy": "needs depth, heads; given are num_classes and input_shape alone",
        f"{file}:soft": "ends in Softmax; logits, from before it, are expected",
        f"{file}:ended": "with no others however large its inputs are, as behind a ReLU, sigmoid or tanh",
        f"{file}:detached": "detaches what it is given|no gradient reaches the images",
        f"{file}:bare": "has no parameter to train",
        f"{file}:instance": "is a model already; name a class or function that builds it",
        f"{file}:narrow": "does not take images of .*at its layer '0'",
    }.items():
        with subtests.test(name), pytest.raises(ModelError, match=why):
            built(name)
    built(f"{file}:fixed")  # What was proved for other classes is tried again.
    with pytest.raises(ModelError, match=r"answers two images with shape \(2, 10\); logits \(2, 7\) are expected"):
        built(f"{file}:fixed", num_classes=7)
    assert built(f"{file}:zero")(torch.zeros(1, 1, 8, 8)).shape == (1, 10), "a last layer of zeros hides what is before"


def test_a_deployed_node_runs_no_code_that_a_server_names() -> None:
    # Words that the other kind of name knows, or two colons, are no way around.
    for model, dataset in (
        ("os:system", "photos"), ("/tmp/x.py:Net", "photos"), ("os:system:x", "photos"), ("celeba:Net", "photos"),
        ("cnn", "timm:list_models"), ("cnn", "torchvision:get_image_backend"), ("cnn", "/tmp/x.py:load"),
    ):  # fmt: skip
        with pytest.raises(RefusedError, match="its operator may allow it by own-code"):
            require_own_code({}, model, dataset, simulated=False)
        require_own_code({}, model, dataset, simulated=True)
        require_own_code({"own-code": f"lenet; {model}; {dataset}"}, model, dataset, simulated=False)
    require_own_code({}, "torchvision:resnet18", "celeba:Male,Smiling", simulated=False)


SHAPE = (1, 8, 8)


class Leaves(nn.Module):
    def forward(self, _: Tensor) -> Tensor:
        sys.exit(0)


class Holds(nn.Module):
    """A network with more state than it is trained by, or with a forward of its own."""

    def __init__(
        self, forward: Callable[..., object] = lambda own, features: own.last(own.first(features)), **state: Tensor
    ) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(64, 64), nn.Linear(64, 10), forward
        for name, one in state.items():
            if isinstance(one, nn.Parameter):
                self.register_parameter(name, one)
            else:
                self.register_buffer(name, one, persistent=False)

    def forward(self, images: Tensor) -> object:
        return self.function(self, images.flatten(1))


class Rounded(torch.autograd.Function):
    """With a gradient of its own."""

    @staticmethod
    def forward(ctx: object, features: Tensor) -> Tensor:
        return features.round()

    @staticmethod
    def backward(ctx: object, slope: Tensor) -> Tensor:  # type: ignore[override]
        return slope


def tied() -> nn.Module:
    model = Holds()
    model.second = nn.Linear(64, 64)
    model.second.weight = model.first.weight
    model.function = lambda own, features: own.last(own.second(torch.sin(own.first(features))))
    return model


def hooked() -> nn.Module:
    model = Holds()
    model.first.register_full_backward_hook(lambda *_: None)
    return model


def keeps_answers() -> nn.Module:
    model = Holds()
    model.kept = []
    model.first.register_forward_hook(lambda _, __, answer: model.kept.append(answer))
    return model


def compiled() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), torch.compile(nn.Linear(64, 64), backend="eager"), nn.Linear(64, 10))
    return torch.compile(nn.DataParallel(model), backend="eager")  # type: ignore[return-value]


def test_state_that_is_not_trained_and_wrappers_are_no_reason_against_a_model(subtests: pytest.Subtests) -> None:
    """Gradient matching is run in the trial: what it takes, attacks take."""
    for factory in (
        tied, compiled, lambda: nn.DataParallel(Holds()), lambda: Holds().double(), lambda: Holds().half(),
        lambda: Holds(unused=nn.Parameter(torch.empty(0))),
        lambda: Holds(lambda own, features: own.last(features + own.grid), grid=torch.linspace(0, 1, 64)),
        lambda: Holds(lambda own, features: own.last(torch.fft.fft(features).abs())),
        lambda: Holds(lambda own, features: own.last(F.dropout(features, training=True))),
    ):  # fmt: skip
        with subtests.test(factory.__name__):
            model = build_own_model(f"{factory}", factory, 10, SHAPE)
            assert {one.dtype for one in model.parameters()} == {torch.float32}
            assert not any("module" in name or "_orig_mod" in name for name, _ in model.named_parameters())
            assert "grid" not in shared_tensors(model), "each build has its own"


def test_a_model_that_attacks_cannot_use_is_refused_before_a_run(subtests: pytest.Subtests) -> None:
    number = nn.Parameter(torch.zeros(64, dtype=torch.complex64))
    detached = torch.no_grad()(lambda own, features: own.last(features))
    for factory, why in (
        (lambda: Holds(lambda own, features: own.last(features).squeeze()), r"one image with shape \(10,\); logits \(1, 10\)"),
        (lambda: Holds(lambda own, features: (own.last(features), features)), "answers with tuple; real logits"),
        (lambda: Holds(lambda own, features: own.last(features) * 1j), "answers with torch.complex64; real logits"),
        (lambda: Holds(lambda own, features: own.last(features).bfloat16()), r"torch.bfloat16; real logits \(B, 10\) in float32"),
        (lambda: nn.Sequential(nn.Flatten(), Leaves(), nn.Linear(64, 10)), r"in eval mode: at its layer '1': SystemExit\(0\)"),
        (lambda: nn.Sequential(nn.Flatten(1, 2), nn.GRU(8, 10), nn.Flatten()), "layer '2'.* answers with several values: take"),
        (lambda: nn.Sequential(nn.Flatten(), nn.GRUCell(64, 10)), "at its layer '1'.*can follow only nn.LSTM"),
        (lambda: Holds(number=number), "the parameter number is torch.complex64; allowed: real floating-point"),
        (lambda: Holds(places=nn.Parameter(torch.arange(9), requires_grad=False)), "the parameter places is torch.int64"),
        (lambda: Holds(detached), "no gradient reaches the images, as behind torch.no_grad"),
        (lambda: Holds(lambda own, features: own.last(Rounded.apply(features))), "with setup_context and generate_vmap_rule"),
        (lambda: Holds(lambda own, features: own.last(features) * float(features.sum())), "choose by torch.where in place"),
        (lambda: Holds().to("meta"), "first.weight is on the device meta, without values"),
        (lambda: nn.Bilinear(64, 64, 10), "forward takes other arguments than the images .*input2.*; wrap it"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), "1.weight has no shape before the first images"),
        (lambda: nn.Sequential(nn.LazyBatchNorm2d(affine=False), nn.Flatten(), nn.Linear(64, 10)), "0.running_mean has no shape"),
        (hooked, "register no backward hooks"),
        (keeps_answers, "what it keeps of an answer must be detached"),
        (lambda: torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), "is of TorchScript"),
    ):  # fmt: skip
        with subtests.test(why), pytest.raises(ModelError, match=why):
            build_own_model(f"{why}", factory, 10, SHAPE)
