"""Checks of an experiment before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from clients.data.card import DataCard
from clients.data.datasets import reads_data_dir
from clients.data.images import ImageDataset
from clients.models.library import ImageSizeError
from clients.task.auxiliary import OWN_AUXILIARY, Auxiliary
from simulations.experiment.experiment import Experiment
from simulations.forecast.memory import check_outline, check_shares, shares
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.text import count
from simulations.run_folder.folder_lock import COMMAND_LOCK, LOCK, require_folder, require_free, require_new, take_lock
from simulations.run_folder.rows import kept
from simulations.run_folder.run_directory import FOLDERS, busy
from simulations.runtime.nodes import dealt
from simulations.runtime.own_code_trials import try_dataset, try_model
from simulations.settings.errors import ConfigError, naming


def preflight(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Raise ``ConfigError`` before any process starts for later failures: unreadable data, a model that does not fit.

    ``say`` takes what one should know without its being an error.
    """
    out = Path(experiment.output_dir)
    require_folder(out)
    require_free(out, busy(out), COMMAND_LOCK)
    require_free(out, busy(out))
    if not experiment.resume:
        unbegun = FOLDERS if (out / LOCK).is_file() else ()  # of a run that ended before its first round
        require_new(out, "output-dir", f"go on with --resume {out}", ("config.json", "rows.jsonl"), unbegun)
    if experiment.resume:
        for lost in kept(out)[2]:
            say(f"warning: {lost}")
    if experiment.data_dir and not any(map(reads_data_dir, (experiment.dataset, experiment.auxiliary_data))):
        raise ConfigError(
            f"data-dir is {experiment.data_dir!r}, and dataset = {experiment.dataset!r} reads no files: for your own pictures set "
            "dataset = folder; else leave data-dir out"
        )
    if experiment.partition == "node":
        raise ConfigError(
            "partition is 'node'; `fedveil run` simulates clients, which have no data of their own: choose iid, dirichlet or "
            "shards, or start real nodes (docs/deployment.md)"
        )
    try_dataset("dataset", experiment.dataset)
    if experiment.auxiliary_data not in OWN_AUXILIARY:
        try_dataset("auxiliary-data", experiment.auxiliary_data)
    with _refusing(f"dataset = {experiment.dataset!r}"):
        data = experiment.plan().load_data()
    _check_counts(experiment, data)
    for why in experiment.idle_defenses(*data.input_shape[1:]):
        say(f"warning: {why}")
    step = experiment.width, experiment.norm, experiment.batch_size
    doubts = [
        f"model: {experiment.model} {doubt}"
        for doubt in try_model("model", experiment.model, data.num_classes, data.input_shape, *step)
    ]
    check_outline(experiment, data)
    for pipeline in experiment.pipelines:
        if pipeline.needs_group_norm and experiment.norm == "batch":
            say(f"notice: {pipeline} needs gradients per example: BatchNorm is replaced by GroupNorm")
        with _refusing(f"dataset = {experiment.dataset!r}, model = {experiment.model!r}"):
            try:
                experiment.check_data(pipeline, DataCard.of(data))
            except ImageSizeError as error:
                raise ConfigError(
                    f"image-size is {experiment.image_size}, model is {experiment.model!r}: {error}"
                ) from error
    experiment.check_images(data.input_shape)
    if experiment.crop_padding >= (side := min(data.input_shape[1:])):
        raise ConfigError(
            f"crop-padding is {experiment.crop_padding}; allowed: below {side}, the images' side, or a crop may be black"
        )
    if experiment.attacked_rounds and experiment.all_attacks:
        with _refusing("auxiliary-data"):
            Auxiliary(experiment.plan()).check()
    check_shares(experiment, data)
    with naming("partition"):
        dealt(experiment.plan(), experiment.partition, data, experiment.num_clients)
    for warning in filter(None, (*data.notes, *doubts, too_few_images(experiment, experiment.num_clients))):
        say(f"warning: {warning}")


def too_few_images(experiment: Experiment, num_clients: int) -> str:
    """A warning where a round attacks too few images for a verdict, or ""."""
    attacked = any(experiment.attacks[kind] for kind in experiment.kinds if kind.chosen)
    images = num_clients * min(rung.targets * rung.size for rung in experiment.rungs)
    if not attacked or not experiment.attacked_rounds or images >= LEAST_IMAGES:
        return ""
    return (
        f"each attacked round has {count(images, 'image')} ({num_clients} clients, probe-targets = "
        f"{experiment.probe_targets}, probe-images = {experiment.probe_images}), and a verdict needs {LEAST_IMAGES} or more: the "
        "report will print scores, but not whether an attack works; raise probe-targets"
    )


def claim_folder(out: Path) -> IO[str]:
    """Make the folder of results, and keep other commands out of it until the returned file is closed."""
    claim = take_lock(out, busy(out), COMMAND_LOCK)
    try:
        require_free(out, busy(out))
    except ConfigError:
        claim.close()
        raise
    return claim


@contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Raise what data, files and torch raise as a ``ConfigError``; errors of torch begin with ``where``."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_counts(experiment: Experiment, data: ImageDataset) -> None:
    """Refuses more of anything than there are examples, before a model is tried on so many."""
    if experiment.attacked_rounds and not any(experiment.attacks.values()):
        keys = ", ".join(dict.fromkeys(kind.setting for kind in experiment.kinds))
        raise ConfigError(
            f"attack-rounds is {experiment.attack_rounds!r}, and no attacks are named ({keys}): name some, or set "
            "attack-rounds = '' to train only"
        )
    seen = data.train.labels.unique()  # type: ignore[no-untyped-call]
    if len(seen) < 2 and not data.multi_label:
        raise ConfigError(
            f"dataset = {experiment.dataset!r}: all {len(data.train)} training examples are of the class {int(seen[0])}; allowed: "
            "data with two or more classes (or a larger train-limit)"
        )
    held, share, tested = shares(experiment, data)
    if min(share, tested) < 1:
        raise ConfigError(
            f"num-clients is {experiment.num_clients}: {experiment.num_clients} clients share {len(data.train)} training examples, "
            f"of which the server holds {held} (auxiliary-fraction = {experiment.auxiliary_fraction:g}), and {len(data.test)} test "
            "examples, which is less than one each; use fewer clients (--clients), more data, or a smaller auxiliary-fraction"
        )
    if experiment.batch_size > (most := len(data.train) - held):
        raise ConfigError(f"batch-size is {experiment.batch_size}; all clients together hold {most} training examples")
    experiment.check_share(share, tested)
