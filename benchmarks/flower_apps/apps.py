"""Flower's examples that are audited, and variants of them: edits of a copy, the lines of the audit among them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class EditError(ValueError):
    """The place of an edit is not in the file: the app has changed."""


@dataclass(frozen=True)
class Edit:
    """A change of one file of an app.

    Attributes:
        file: Path in the app.
        place: Start of the one line before which ``lines`` go, as far indented; "" for the end of the file.
        lines: New lines; ``@OUT@`` stands for the folder of the audit.
        old: A text in the file that ``lines`` replace, in place of ``place``.
    """

    file: str
    place: str
    lines: str
    old: str = ""

    def apply(self, text: str) -> str:
        """The text of the file afterwards; ``EditError`` if the place does not occur exactly once."""
        if self.old:
            self._require_one(text.count(self.old))
            return text.replace(self.old, self.lines)
        if not self.place:
            return text.rstrip("\n") + "\n\n\n" + self.lines.strip("\n") + "\n"
        every = text.splitlines(keepends=True)
        places = [at for at, line in enumerate(every) if line.strip().startswith(self.place)]
        self._require_one(len(places))
        line = every[places[0]]
        indent = line[: len(line) - len(line.lstrip())]
        every.insert(places[0], "".join(f"{indent}{one}\n" for one in self.lines.splitlines()))
        return "".join(every)

    def _require_one(self, count: int) -> None:
        if count != 1:
            raise EditError(f"{self.file} has {self.old or self.place!r} {count} times; expected 1")


def apply_all(folder: Path, edits: Iterable[Edit], out: str) -> int:
    """Edit the files of an app for an audit in ``out``; how many lines that are not empty were added or changed."""
    added = 0
    for edit in edits:
        path = folder / edit.file
        before = path.read_text(encoding="utf-8")
        after = edit.apply(before).replace("@OUT@", out)
        path.write_text(after, encoding="utf-8")
        changes = difflib.ndiff(before.splitlines(), after.splitlines())
        added += sum(line.startswith("+ ") and bool(line[2:].strip()) for line in changes)
    return added


@dataclass(frozen=True)
class App:
    """An app of Flower's repository, or a variant of one.

    Attributes:
        special: What is special about it.
        folder: In the checkout.
        package: Of its code.
        audit: The edits that audit it.
        variant: Edits that make a variant.
        config: Run configuration, beside one round.
        clients: Number of nodes.
        mentions: Patterns of caveats that are true of the app, so that its page must state them.
    """

    special: str
    folder: str
    package: str
    audit: tuple[Edit, ...]
    variant: tuple[Edit, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    clients: int = 2
    mentions: tuple[str, ...] = ()


def audit_lines(
    package: str, loaders: str, options: str, at_clients: tuple[Edit, ...] = (), also: str = ""
) -> tuple[Edit, ...]:
    """The lines of an audit.

    Args:
        package: Of the app.
        loaders: Call of the training and the test loader, where ``own`` is the node's configuration.
        options: Of ``audited``, each with a comma in front.
        at_clients: Further edits.
        also: Further names that the clients import.
    """
    server, client = f"{package}/server_app.py", f"{package}/client_app.py"
    return (
        Edit(server, "app = ServerApp()", "from simulations.audited import audited"),
        Edit(server, "result = strategy.start(", f'strategy = audited(strategy, "@OUT@", Net{options})'),
        Edit(client, "app = ClientApp(", f"from clients import answer_audits{also}"),
        *at_clients,
        Edit(client, "", f"""def pixels(context):
    own = context.node_config
    both = {loaders}
    return tuple([(one["img"] / 2 + 0.5, one["label"]) for one in part.dataset] for part in both)


answer_audits(app, model=Net, data=pixels, mean=0.5, std=0.5)"""),
    )  # fmt: skip


def quickstart(special: str, *variant: Edit, options: str = "", clients: int = 2, **config: Any) -> App:
    """Flower's quickstart, or a variant of it."""
    loaders = 'load_data(own["partition-id"], own["num-partitions"], 32)'
    lines = audit_lines("pytorchexample", loaders, options)
    named = {name.replace("_", "-"): value for name, value in config.items()}
    return App(special, "examples/quickstart-pytorch", "pytorchexample", lines, variant, named, clients)


PRIVATE = "opacus_fl/client_app.py"
OPACUS = 'load_data(own["partition-id"], own["num-partitions"])'
DRAWN = "train_loader = with_canaries(train_loader, context, seed=@SEED@)"
AT_STEP = (
    Edit(PRIVATE, "privacy_engine = PrivacyEngine(", DRAWN),
    Edit(PRIVATE, "epsilon = train(", "set_canary_gradients(private_model, optimizer, context)"),
)


def canaries(special: str, *variant: Edit) -> App:
    """Flower's example of Opacus with canaries in its training, or a variant of it."""
    options = ', probe_attacks="", canaries=True, rounds=range(1, num_rounds + 1)'
    lines = audit_lines("opacus_fl", OPACUS, options, AT_STEP, ", set_canary_gradients, with_canaries")
    return App(special, "examples/opacus", "opacus_fl", lines, variant, {"num-server-rounds": 3})


def bug(name: str, parameters: str, value: str) -> Edit:
    """A planted bug: what stands in place of noisy gradients."""
    return Edit(PRIVATE, "epsilon = train(", f"""add_noise = optimizer.add_noise
def {name}():
    add_noise()
    for one in {parameters}:
        one.grad = {value}
optimizer.add_noise = {name}""")  # fmt: skip


TASK = "pytorchexample/task.py"
FULL = Edit("opacus_fl/task.py", "", '_test["train"], batch_size=10**6', '_test["train"], batch_size=32')
BOTH = "PatchEmbeddingInversion(); LabelInference()"
LONG = "InvertingGradients(iterations=300); SurrogateMatching(iterations=300); LabelInference()"
APPS = {
    "quickstart-pytorch": quickstart("SGD with momentum"),
    "quickstart/inverted": quickstart(
        "10 clients, 5 rounds of 3 local epochs", options=f', rounds=(1, 5), update_attacks="{LONG}"', clients=10,
        num_server_rounds=5, local_epochs=3, fraction_evaluate=0.0,
    ),
    "own/vit": quickstart(
        "a vision transformer of timm, trained whole",
        Edit(TASK, "", "from timm.models.vision_transformer import VisionTransformer\n\n\nclass Convolutional(nn.Module):",
             "class Net(nn.Module):"),
        Edit(TASK, "", "super(Convolutional, self)", "super(Net, self)"),
        Edit(TASK, "fds = None", """class Net(VisionTransformer):
    def __init__(self):
        super().__init__(img_size=32, patch_size=4, num_classes=10, embed_dim=128, depth=4, num_heads=4)


"""),
        options=f', probe_attacks="{BOTH}", update_attacks="{BOTH}"',
    ),
    "opacus": App(
        "DP-SGD inside `train`", "examples/opacus", "opacus_fl",
        audit_lines("opacus_fl", OPACUS, ""),
        mentions=("clipping or noise inside",),
    ),
    "opacus/canaries": canaries("canaries in DP-SGD; batches of 32"),
    "opacus/full": canaries("canaries in DP-SGD; full batches", FULL),
    "opacus/layer": canaries(
        "planted bug: no noise on the last layer; batches of 32",
        bug("elsewhere", "private_model._module.fc3.parameters()", "one.summed_grad.view_as(one).clone()"),
    ),
    "opacus/full-half": canaries(
        "planted bug: half of the noise; full batches", FULL,
        bug("half", "optimizer.params", "(one.grad + one.summed_grad.view_as(one)) / 2"),
    ),
}  # fmt: skip
"""Name -> app."""
