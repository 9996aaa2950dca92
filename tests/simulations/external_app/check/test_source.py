"""What is read of an app's source: answers that a reader sees at once."""

import ast
from pathlib import Path

from simulations.external_app.check.source.loading import read_loading
from simulations.external_app.check.source.reading import read_images, read_source
from tests.simulations.external_app.check.apps import project_of

CALL = 'load_data(own["partition-id"], own["num-partitions"], run["batch-size"])'
NODE = "context.node_config['partition-id'], context.node_config['num-partitions']"


def test_the_call_of_the_loader_is_written_in_terms_of_the_context(tmp_path: Path) -> None:
    for at, (call, expected) in enumerate((
        (CALL, f"load_data({NODE}, context.run_config['batch-size'])"),
        ('load_data(*own.values(), run["batch-size"])', None),
        ('load_data(msg.content["config"]["part"], 2, size=8)', None),
        ("[load_data(part, 2, size=8) for part in [1]][0]", None),
    )):  # fmt: skip
        loading = read_loading(project_of(tmp_path / str(at), ("client", CALL, call)))
        assert loading is not None
        assert (loading.function, loading.names, loading.train, loading.held_out) == (
            "small.task:load_data", ("train", "test"), 0, 1,
        )  # fmt: skip
        assert (None if loading.call is None else ast.unparse(loading.call)) == expected


def test_loss_and_start_are_quoted_and_not_interpreted(tmp_path: Path) -> None:
    source = read_source(project_of(tmp_path))
    assert source.losses == ("nn.CrossEntropyLoss() (task.py:26)",)
    assert source.start is not None
    assert (source.start.strategy, source.start.where, source.start.indent) == ("strategy", "server.py:15", 4)


def test_normalisations_and_fields_are_read(tmp_path: Path) -> None:
    imported = "\nimport torch\nfrom torchvision.transforms import Normalize\n"
    for at, (lines, expected) in enumerate((
        ("T = Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))", ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))),
        ("T = Normalize(std=(0.25, 0.25), mean=(0.5, 0.5), inplace=True)", ((0.5,), (0.25,))),
        ("BOTH = (0.5, 0.5), (0.25, 0.25)\nT = Normalize(*BOTH)", ((0.5,), (0.25,))),
        ("MEAN = (0.5, 0.5)\nT = Normalize(MEAN, [0.1, 0.1])", ((0.5,), (0.1,))),
        ("T = Normalize(torch.rand(3), 1)", None),
    )):  # fmt: skip
        images = read_images(project_of(tmp_path / str(at), ("task", "\nimport torch\n", f"{imported}{lines}\n")))
        found = [] if expected is None else [expected]
        # Without any that can be read, arithmetic of the loader counts.
        assert [(one.mean, one.std) for one in images.normalisations] == (found or [((0.25,), (0.5,))])
        assert bool(images.unreadable) == (expected is None)
        assert images.pairs
    loop = (
        "task",
        "for images, labels in loader:",
        "for batch in loader:\n            images, labels = batch['img'], batch['label']",
    )
    images = read_images(project_of(tmp_path / "keys", ("task", "\nimport torch\n", imported), loop))
    assert (images.image_key, images.label_key, images.pairs) == ("img", "label", False)
