"""Records of which some trained a model, as pictures or as predictions, and the plan of the attack on that model."""

import functools
import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from attacks.metrics.metric import LEAST_IMAGES
from clients.data.files.decoding import full_scale
from clients.data.files.picture_files import class_pictures, picture_part
from clients.data.images import DataError, ImageData, ImageDataset, with_channels
from clients.external_app.plan import AppPlan
from clients.task.auxiliary import Auxiliary
from clients.task.local_data import LocalData
from clients.task.task import WholeModelPlan
from clients.wire.texts import shortened
from simulations.settings.errors import ConfigError, naming

COLOURS = 3
"""Channels of a model that grey pictures are given to as three equal ones."""


@dataclass(frozen=True)
class ReleasedPlan(AppPlan):
    """A plan of folders of ``members`` and, in ``data_dir``, non-members; without ``members``, of a table of predictions there."""

    members: str = ""

    def load_data(self) -> ImageDataset:
        """Non-members in the place of training examples, of which the server's own are; members in that of test examples."""
        if not self.members:
            return read_predictions(self.data_dir)[0]
        data, _ = read_pictures(self.members, self.data_dir)
        if self.data_card().input_shape[0] != COLOURS:
            return data
        return replace(data, train=with_channels(data.train, COLOURS), test=with_channels(data.test, COLOURS))

    def build_model(self) -> nn.Module:
        """The model by its name, or the table."""
        if self.members:
            return WholeModelPlan.build_model(self)
        logits = read_predictions(self.data_dir)[1]
        return PredictionTable(len(logits), logits.shape[1], _weight=logits.clone())


class Records(LocalData):
    """Records under test: members as training examples, and as test examples the non-members that are not the server's own.

    With ``members_alone`` members are the test examples, too, on which a model is evaluated.
    """

    def __init__(self, plan: ReleasedPlan, members_alone: bool = False) -> None:
        data = plan.load_data()
        members = range(len(data.test))
        self.set_aside = Auxiliary(plan).indices(data.train.strata())
        others = torch.from_numpy(np.setdiff1d(np.arange(len(data.train)), self.set_aside))
        super().__init__(plan.at(plan.rounds + 1), 0, members, members if members_alone else others)
        self.dataset = replace(data, train=data.test, test=data.test if members_alone else data.train)


class PredictionTable(nn.Embedding):
    """A model that is known by its predictions: maps numbers of records (B, 1, 1, 1) to their logits, the rows of a table."""

    def forward(self, records: Tensor) -> Tensor:
        """Logits (B, K)."""
        return super().forward(records.flatten().long())


@functools.lru_cache(maxsize=1)
def read_pictures(members: str, nonmembers: str) -> tuple[ImageDataset, int]:
    """Members as test part, non-members as training part; how many copies of a picture within a folder were left out.

    ``ConfigError`` for a folder without pictures or with several sizes of these, unequal classes, or an image in both or in two.
    """
    of = {"--members": class_pictures(Path(members)), "--nonmembers": class_pictures(Path(nonmembers))}
    names = tuple(of["--members"])
    if odd := sorted({*names} ^ {*of["--nonmembers"]}):
        raise ConfigError(
            f"--members and --nonmembers need folders of the same classes; {', '.join(map(repr, odd))}: in one only"
        )
    # One scale for both: two would give members away by their brightness.
    scale = full_scale(path for by_class in of.values() for paths in by_class.values() for path in paths)
    known, parts, copies = dict[bytes, Path](), list[ImageData](), 0
    for option, by_class in of.items():
        paths, own = [path for each in by_class.values() for path in each], dict[bytes, int]()
        labels = np.repeat(np.arange(len(names)), [len(each) for each in by_class.values()])
        with naming(option):
            if not paths:
                raise DataError("there are no pictures; expected a folder per class with pictures in it")
            images = picture_part(paths, labels, scale).images(np.arange(len(paths)), 0, math.inf)[:]
            for at, image in enumerate(images):
                first = own.setdefault(hashlib.blake2b(image.numpy().tobytes()).digest(), at)
                if labels[first] != labels[at]:
                    raise DataError(f"{paths[at]} is the same image as {paths[first]}; a record has one class")
            if both := own.keys() & known.keys():
                same, count = min(both, key=lambda digest: known[digest]), f"{len(both)} of both folders are the same"
                raise DataError(
                    f"{paths[own[same]]} is the same image as {known[same]}; {count}; a record is a member or not"
                )
        known |= {digest: paths[at] for digest, at in own.items()}
        kept, copies = list(own.values()), copies + len(paths) - len(own)
        parts.append(ImageData(images[kept], torch.from_numpy(labels[kept])))
    return ImageDataset(parts[1], parts[0], names, (0.0,), (1.0,), name="pictures"), copies


@functools.lru_cache(maxsize=1)
def read_predictions(path: str) -> tuple[ImageDataset, Tensor]:
    """Numbers of members as test part, of non-members as training part, and the logarithms of all probabilities, (N, K).

    ``DataError`` names the line, what came and what is allowed.
    """
    header, *rest = Path(path).read_text(encoding="utf-8-sig").split("\n")
    lines = [(number, line) for number, line in enumerate(rest, 2) if line.strip()]
    names = tuple(header.split(",")[2:])
    if header.split(",")[:2] != ["member", "label"] or len(names) < 2:
        raise DataError(
            f"line 1 is {shortened(header)}; expected member,label and a name per class; see `fedveil attack --help`"
        )
    values = np.zeros((len(lines), len(names) + 2))
    for at, (number, line) in enumerate(lines):
        with naming(f"line {number} is {shortened(line)}; allowed: {len(names) + 2} numbers, as line 1 has names"):
            values[at] = list(map(float, line.split(",")))
    member, label, shares = values[:, 0], values[:, 1], values[:, 2:]
    for right, allowed in (
        (np.isin(member, (0, 1)), "member 1 or 0"),
        (np.isin(label, range(len(names))), f"label 0 to {len(names) - 1}"),
        (((shares >= 0) & (shares <= 1)).all(1), "probabilities from 0 to 1, so no logits"),
        (abs(shares.sum(1) - 1) <= 0.01, "probabilities that sum to 1 within 0.01"),
    ):
        if not right.all():
            number, line = lines[right.argmin()]
            raise DataError(f"line {number} is {shortened(line)}; allowed: {allowed}")
    parts = []
    for what, rows in (("non-members", np.flatnonzero(member == 0)), ("members", np.flatnonzero(member == 1))):
        if len(rows) < LEAST_IMAGES:
            raise DataError(f"there are {len(rows)} {what}; needed: {LEAST_IMAGES} or more")
        numbers, labels = torch.from_numpy(rows).int().view(-1, 1, 1, 1), torch.from_numpy(label[rows]).long()
        parts.append(ImageData(numbers, labels))
    logits = torch.from_numpy(shares).clamp(min=1e-30).log().float()  # 0 has none
    return ImageDataset(parts[0], parts[1], names, (0.0,), (1.0,), name="predictions"), logits
