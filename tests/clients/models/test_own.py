"""Models of one's own: what a name says is called, and what is no classifier is refused in one message."""

from __future__ import annotations

import os
import py_compile
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import torch

from clients.models.classifiers import ModelError, build_model
from clients.models.own import GROUP, is_own_model
from clients.process.own_code import _from_file, absolute, fingerprint, own_code
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


class Fixed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


class Narrow(nn.Sequential):
    def __init__(self, **given):
        super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, given["num_classes"]))


class Needy(nn.Module):
    def __init__(self, depth, heads):
        super().__init__()


class Soft(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes), nn.Softmax(1))


class Yes(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes), nn.Sigmoid())


class Lazy(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.LazyLinear(num_classes))


class Bounded(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))

    def forward(self, images):
        assert images.min() >= 0, "images below zero"
        return super().forward(images)


class Ended(Fixed):
    end = staticmethod(torch.sigmoid)

    def forward(self, images):
        return self.end(super().forward(images))


class Rectified(Ended):
    end = staticmethod(torch.relu)


class Tangent(Ended):
    end = staticmethod(torch.tanh)


class Softened(Ended):
    end = staticmethod(nn.functional.softplus)


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10))
        nn.init.uniform_(self[2].weight, -1e-3, 1e-3)


class Zero(Fixed):
    def __init__(self):
        super().__init__()
        nn.init.zeros_(self[1].weight)
        nn.init.zeros_(self[1].bias)


class Inside(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.odd, self.last = nn.Linear(64, 8), Odd(), nn.Linear(8, 10)

    def forward(self, images):
        return self.last(self.odd(self.first(images.flatten(1))))


class Odd(nn.Module):
    def forward(self, values):
        return torch.from_numpy(values.detach().numpy() * 1.0)


class Round(Odd):
    def forward(self, values):
        return values.round()


class Rounded(Inside):
    def __init__(self):
        super().__init__()
        self.odd = Round()


class Adds(Odd):
    def forward(self, values):
        made = values.exp()
        made += 1
        return made


class Added(Inside):
    def __init__(self):
        super().__init__()
        self.odd = Adds()


class Bare(nn.Module):
    def forward(self, images):
        return images.flatten(1)[:, :10]


instance = Fixed()


def script():
    raise SystemExit(0)


class Dictionary(Fixed):
    def forward(self, images):
        return {"logits": super().forward(images)}


def broken():
    raise ZeroDivisionError("no")


def nothing():
    return nn.Flatten()


def text(num_classes):
    return "a model"


number = 7
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
    assert built(f"{file}:Fixed")(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    narrow = built(f"{file}:Narrow", input_shape=(3, 8, 8), num_classes=3)
    assert narrow(torch.zeros(1, 3, 8, 8)).shape == (1, 3)
    assert not any(getattr(module, "inplace", False) for module in narrow.modules())
    assert built("tests.clients.models.test_own:linear")(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def linear(num_classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "{file}:Nett",
            "has no 'Nett'; in it are Added, Adds, Bare, Bounded, Dictionary, Ended, Fixed, Inside, Lazy, Narrow, Needy, Net",
        ),
        ("{file}:number", "has int, nothing to call, as 'number'"),
        ("/no/such/file.py:Net", "there is no file /no/such/file.py"),
        ("no.such.module:Net", "no.such.module cannot be imported: ModuleNotFoundError"),
        ("{file}:Needy", "needs depth, heads; given are num_classes and input_shape alone"),
        ("{file}:Soft", "ends in Softmax; logits, from before it, are expected"),
        ("{file}:Yes", "ends in Sigmoid; logits, from before it, are expected"),
        ("{file}:Lazy", "1.weight has no shape before the first images"),
        ("{file}:Bounded", "does not take images of .* in eval mode: images below zero"),
        ("{file}:Ended", "with no others however large its inputs are, as behind a ReLU, sigmoid or tanh"),
        ("{file}:Rectified", "with no others however large its inputs are, as behind a ReLU, sigmoid or tanh"),
        ("{file}:Tangent", "answers with values from -1 to 1, and with no others however large"),
        ("{file}:Softened", "with no others however large its inputs are, as behind a ReLU, sigmoid or tanh"),
        ("{file}:Inside", r"cannot be computed \(its layer 'odd' detaches what it is given\)"),
        ("{file}:Rounded", "no gradient reaches the images, as behind torch.round or argmax"),
        ("{file}:Added", "something is changed in place that a layer needs"),
        ("{file}:Bare", r"Bare\(\) has no parameter to train"),
        ("{file}:instance", "is a model already; name a class or function that builds it"),
        ("{file}:Net:x", "has several colons; expected FILE.py:NAME or PACKAGE.MODULE:NAME"),
        ("{file}:script", "raises SystemExit: 0"),
        ("{file}:Dictionary", r"answers with dict; logits \\(B, 10\\) are expected"),
        ("{file}:Narrow", "does not take images of .*at its layer '0'"),
        ("{file}:broken", "raises ZeroDivisionError: no"),
        ("{file}:nothing", "has no parameter to train"),
        ("{file}:text", "returns str; a torch.nn.Module is expected"),
        ("torchvison:resnet18", "unknown model 'torchvison:resnet18', did you mean"),
    ],
)
def test_what_is_no_classifier_is_refused_with_the_reason(file: Path, name: str, why: str) -> None:
    with pytest.raises(ModelError, match=why.replace("\\\\", "\\")):
        built(name.format(file=file))


@pytest.mark.parametrize("name", ["Normed", "Zero"])
def test_small_or_zero_answers_are_logits(file: Path, name: str) -> None:
    """Behind a LayerNorm they never grow with the images; a last layer of zeros hides what stands before it."""
    assert built(f"{file}:{name}")(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_a_file_that_imports_its_neighbours_as_a_package_is_named_otherwise(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("from .layers import L")
    with pytest.raises(ModelError, match=r"is named as PACKAGE\.MODULE:NAME, from the folder above the package"):
        built(f"{tmp_path / 'inner.py'}:Net")


def test_answers_of_another_width_are_refused(file: Path) -> None:
    with pytest.raises(ModelError, match=r"answers two images with shape \(2, 10\); logits \(2, 7\) are expected"):
        built(f"{file}:Fixed", num_classes=7)
    with pytest.raises(ModelError, match="comes in one width"):
        built(f"{file}:Fixed", width=3)


def test_names_that_say_where_code_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("mine.py:Net") == f"{tmp_path / 'mine.py'}:Net"
    for name in ("lenet", "torchvision:resnet18", "timm:vit_tiny_patch16_224", "package.module:factory"):
        assert absolute(name) == name
    assert [is_own_model(name) for name in ("lenet", "torchvision:resnet18", "a.py:B", "a.b:c")] == [
        False,
        False,
        True,
        True,
    ]


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


def test_a_fingerprint_follows_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("Net = 1")
    before = fingerprint(f"{file}:Net", GROUP)
    assert len(before) == 16
    file.write_text("Net = 2")
    assert fingerprint(f"{file}:Net", GROUP) not in ("", before)
    file.unlink()
    assert fingerprint(f"{file}:Net", GROUP) == ""
    assert fingerprint("tests.clients.models.test_own:Net", GROUP) != ""
    assert fingerprint("cnn", GROUP) == fingerprint("no.such.module:Net", GROUP) == ""


def test_a_file_runs_as_it_stands_and_nothing_is_left_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python matches bytecode to a file by second and size: after two edits within a second it would run the older code."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    file = tmp_path / "mine.py"
    for text, found in (("def net(): return 1", 1), ("def net(): return 2", 2)):
        file.write_text(text)
        os.utime(file, (1e9, 1e9))
        _from_file.cache_clear()  # as another process has none
        assert own_code(f"{file}:net")() == found
        assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_bytecode_that_an_import_left_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def net(): return 1")
    os.utime(file, (1e9, 1e9))
    py_compile.compile(str(file), cfile=cache_from_source(str(file)))
    file.write_text("def net(): return 2")
    os.utime(file, (1e9, 1e9))
    _from_file.cache_clear()
    assert own_code(f"{file}:net")() == 2


def test_a_script_that_ends_itself_is_no_module(tmp_path: Path) -> None:
    """The command ended without a word, and with the code 0."""
    path = tmp_path / f"script_{tmp_path.name}.py"
    path.write_text("import sys\nNet = None\nsys.exit(0)\n")
    with pytest.raises(ModelError, match="cannot be imported: SystemExit: 0"):
        built(f"{path}:Net")


ATTENTIVE = """
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.inner, self.last = nn.Linear(8, 16), nn.Linear(16, num_classes)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, images):
        rows = self.inner(images.mean(1))
        return self.last(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))
"""


def test_fused_attention_is_no_obstacle(tmp_path: Path) -> None:
    """Its kernels have no second derivative on processors, but attacks compute attention by single operations."""
    (tmp_path / "attentive.py").write_text(ATTENTIVE, encoding="utf-8")
    model = build_model(f"{tmp_path}/attentive.py:Net", num_classes=10, input_shape=(1, 8, 8))
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
