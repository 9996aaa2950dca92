"""All facts from an app's source that a trial of the app does not show; numbers of training are not among them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from simulations.external_app.check.source.images import Images, read_images
from simulations.external_app.check.source.loading import Loading, read_loading
from simulations.external_app.check.source.project import Project

LOSS = re.compile("(Loss|_loss|cross_entropy(_with_logits)?)$")
PRIVACY = ("PrivacyEngine", "make_private", "make_private_with_epsilon")
"""Opacus' names."""


class Start(NamedTuple):
    """The call that starts the rounds: the variable before ``.start(`` or "", file and line, name of the context, indentation."""

    strategy: str
    where: str
    context: str
    indent: int


@dataclass(frozen=True)
class AppSource:
    """Facts from an app's source: optimizers, losses and Opacus as written, with file and line, and what the lines to add need."""

    optimizers: tuple[str, ...]
    losses: tuple[str, ...]
    privacy: tuple[str, ...]
    images: Images
    loading: Loading | None
    start: Start | None

    @property
    def sgd(self) -> bool:
        """Whether the clients may train with SGD: nothing else was seen."""
        return not self.optimizers or any(one.partition("(")[0].endswith("SGD") for one in self.optimizers)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        means = (f"mean {list(one.mean)}, std {list(one.std)} ({one.where})" for one in self.images.normalisations)
        loading = self.loading and f"{self.loading.function} returns {', '.join(self.loading.names)}"
        return {
            "optimizers": self.optimizers, "losses": self.losses, "normalisation": tuple(means),
            "augmentations": self.images.augmentations, "privacy": self.privacy, "loading": loading or "",
        }  # fmt: skip


def read_source(project: Project) -> AppSource:
    """Look through the files of both entry points; nothing of them is run."""
    optimizers, losses, privacy = dict[str, str](), dict[str, str](), dict[str, str]()
    for module, call in project.calls():
        full = module.full(call.func)
        name = full.rpartition(".")[2] or getattr(call.func, "attr", "")
        if full.startswith("torch.optim.") and "lr_scheduler" not in full and name[:1].isupper():
            optimizers.setdefault(ast.unparse(call), module.at(call))
        elif full.startswith("torch.nn.") and LOSS.search(name):
            losses.setdefault(ast.unparse(call), module.at(call))
        elif name in PRIVACY:
            privacy.setdefault(name, module.at(call))
    return AppSource(
        _listed(optimizers),
        _listed(losses),
        _listed(privacy),
        read_images(project),
        read_loading(project),
        _start(project),
    )


def _listed(found: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{text} ({where})" for text, where in found.items())


def _start(project: Project) -> Start | None:
    server = project.server
    for node in ast.walk(server.tree) if server else ():
        if server and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "start":
            if "grid" not in {one.arg for one in node.keywords} and len(node.args) < 2:
                continue
            around, receiver = server.around(node), node.func.value
            given = [one.arg for one in around.args.args] if around else []
            line = server.path.read_text(encoding="utf-8-sig").splitlines()[node.lineno - 1]
            return Start(
                receiver.id if isinstance(receiver, ast.Name) else "", server.at(node), given[1] if len(given) > 1 else "context",
                len(line) - len(line.lstrip()),
            )  # fmt: skip
    return None
