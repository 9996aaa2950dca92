"""ATS: which policy an image gets, in what order its steps apply, and with what signs."""

import builtins
import json
import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from defenses.base import Batch
from defenses.images.ats import ATS, parse_policies
from defenses.images.transforms import apply_transform
from defenses.random_draws import generator_for
from defenses.spec import parse, parse_pipelines, read_files


def batch_of(count: int, side: int = 16) -> Batch:
    images = torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))
    return Batch(images, torch.eye(10)[torch.arange(count) % 10])


@given(st.lists(st.lists(st.integers(0, 49), min_size=1, max_size=3), min_size=1, max_size=4))
def test_policies_are_read_as_written(policies: list[list[int]]):
    text = "+".join("-".join(map(str, policy)) for policy in policies)
    shared = any(set(a) & set(b) for i, a in enumerate(policies) for b in policies[:i])
    if shared:
        with pytest.raises(ValueError, match="share a transform"):
            parse_policies(text)
    else:
        assert parse_policies(text) == tuple(map(tuple, policies))


def test_bad_policies_are_refused_with_the_reason() -> None:
    for text in (
        *("", "3-", "-3", "3--1", "3+", "3 1", "3-50", "1000", "a", "3-1+1-4", "\u0663", "3-1\n"),
        *("3-" * 16 + "3", "3-" * 60_000 + "3"),
    ):
        with pytest.raises(ValueError, match=r"policies is .*allowed: policies such as '3-1-7"):
            ATS(text)


def test_43_18_18_is_18_twice_after_43():
    batch = batch_of(64)
    protected = ATS("43-18-18").protect_batch(batch, generator_for("a")).images
    signs = [torch.tensor(s) for s in ((a, b, c) for a in (1.0, -1) for b in (1.0, -1) for c in (1.0, -1))]
    used = set()
    for image, original in zip(protected, batch.images, strict=True):
        matches = []
        for number, sign in enumerate(signs):
            expected = original[None]
            for step, index in enumerate((43, 18, 18)):
                expected = apply_transform(expected, index, sign[step : step + 1])
            if torch.allclose(expected[0], image, atol=1e-6):
                matches.append(number)
        assert matches, "an image is not any signed composition in this order"
        used.update(matches)
    assert used == set(range(8))


@pytest.mark.numeric
def test_policies_are_drawn_uniformly_and_signs_fairly() -> None:
    # Inversion and the two identities tell the policies apart.
    batch = batch_of(4000, side=2)
    protected = ATS("0+28+39").protect_batch(batch, generator_for(2)).images
    inverted = (protected == 1 - batch.images).all(dim=(1, 2, 3)).double()
    kept = (protected == batch.images).all(dim=(1, 2, 3)).double()
    assert torch.equal(inverted + kept, torch.ones(4000, dtype=torch.float64))
    assert inverted.mean().item() == pytest.approx(1 / 3, abs=4.5 * (2 / 9 / 4000) ** 0.5)
    white = Batch(torch.ones(2000, 1, 8, 8), torch.ones(2000, 1))
    shifted = ATS("3").protect_batch(white, generator_for(3)).images
    to_the_right = (shifted[:, 0, 0, 0] == 0).double().mean().item()
    assert to_the_right == pytest.approx(0.5, abs=4.5 * 0.5 / 2000**0.5)


# ---- files


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A result of a search on grey images, in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("found.json").write_text(json.dumps({"policies": "3-1-7", "channels": 1, "scores": []}))
    return tmp_path / "found.json"


def test_a_text_opens_no_file(result: Path, monkeypatch: pytest.MonkeyPatch):
    """That of a message may not tell a file that is there from one that is not."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the disk was touched")

    readers = {Path: ("read_text", "open", "stat"), builtins: ("open",), os: ("stat", "open")}
    for owner, name in ((owner, name) for owner, names in readers.items() for name in names):
        monkeypatch.setattr(owner, name, fail)
    told = set()
    for name in ("found.json", "missing.json", str(result), "found.json/x.json"):
        for read, text in ((parse, f"ATS({name!r})"), (parse_pipelines, f"ATS({name!r})"), (ATS, name)):
            with pytest.raises(
                ValueError, match=r"policies is '.*\.json'; allowed: the name of a file only in"
            ) as error:
                read(text)
            told.add(str(error.value).replace(name, "NAME").removeprefix("defence ATS: "))
    assert len(told) == 1


def test_a_persons_text_becomes_one_that_needs_no_file(result: Path) -> None:
    assert ATS.read("found.json") == ATS.read(result) == ATS("3-1-7", channels=1)
    assert ATS.read(result).unfit(1, 28, 28) == ""
    assert "write channels=3 (0: any) beside the policies to use them all the same" in ATS.read(result).unfit(3, 32, 32)
    for channels in (0, 3):  # beside a file, they are those of the transfer
        (pipeline,) = parse_pipelines(read_files(f"ATS(policies='found.json', channels={channels})"))[1:]
        assert pipeline.defenses == (ATS("3-1-7", channels=channels),)
        assert pipeline.unfit(3, 32, 32) == ""
    texts = [
        read_files(f"Blur(2.0)\nATS('{path}') | Blur(std=1.0); ATS(policies='3')")
        for path in ("found.json", "./found.json", result)
    ]
    result.unlink()
    for text in texts:
        assert text == ("Blur(std=2.0); ATS(policies='3-1-7', channels=1) | Blur(std=1.0); ATS(policies='3')")
        assert parse_pipelines(text)[2].defenses[0] == ATS("3-1-7", channels=1)
        assert read_files(text) == text


def test_a_file_that_is_no_result_is_refused_with_the_reason(result: Path) -> None:
    for text, message in (
        (None, "No such file"),
        *((text, "no result of fedveil search") for text in ("{}", "[1]", "no json", "\udcff")),
        ('{"policies": "3", "channels": "grey"}', "no result of fedveil search"),
        ('{"policies": "", "channels": 3}', "the search found no policies"),
        ('{"policies": "other.json", "channels": 3}', "policies is 'other.json'; allowed: the name of a file only"),
        ('{"policies": "3-50", "channels": 3}', "index 50 is not in"),
        ('{"policies": "3", "channels": 2}', "channels is 2; allowed: 0"),
    ):
        result.unlink() if text is None else result.write_bytes(text.encode(errors="surrogateescape"))
        for read in (lambda: ATS.read("found.json"), lambda: read_files("ATS(policies='found.json')")):
            with pytest.raises(ValueError, match=re.escape(message)):
                read()
