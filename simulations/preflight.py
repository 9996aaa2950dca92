"""Checks of an experiment before anything starts: its data, its model, its folder, and the memory that it needs."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from attacks.metrics.metric import LEAST_IMAGES
from clients.data.card import DataCard
from clients.data.datasets import reads_data_dir
from clients.data.images import ImageDataset, StoredImages
from clients.models.library import ImageSizeError, TooLargeError, is_usual
from clients.process.machine import memory_of_machine
from clients.task.auxiliary import Auxiliary
from clients.task.task import FLOAT_BYTES
from clients.training.step_cost import measure_step
from simulations.experiment.experiment import Experiment
from simulations.report.text import count
from simulations.run_folder.folder_lock import COMMAND_LOCK, LOCK, require_folder, require_free, require_new, take_lock
from simulations.run_folder.rows import kept
from simulations.run_folder.run_directory import FOLDERS, busy
from simulations.runtime.nodes import dealt
from simulations.settings.errors import ConfigError, naming

GIB = 2**30
PROCESS = 480 * 2**20
"""Bytes that a process of ours has with torch, Flower and our modules, its part of shared ones included (PSS; 360 to 580 MiB)."""
RUNTIME = 600 * 2**20
"""Bytes of Flower's and Ray's own processes together, likewise."""
ATTACK_STEPS = 3
"""An attack step differentiates a gradient: it keeps about so many times what a training step does."""
MOST_KEPT = 32
"""Clients whose protected images a worker keeps."""
Peak = Callable[[int], float]
"""Bytes at the peak of a training step without a defence, of the images of its batch."""


def preflight(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Raise ``ConfigError`` before any process starts for later failures: unreadable data, a model that does not fit.

    ``say`` takes what one should know without its being an error.
    """
    _check_folder(experiment, say)
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
    with _refusing(f"dataset = {experiment.dataset!r}"):
        data = experiment.plan().load_data()
    _check_counts(experiment, data)
    _check_model(experiment, data, say)
    experiment.check_images(data.input_shape)
    if experiment.crop_padding >= (side := min(data.input_shape[1:])):
        raise experiment.refusal("crop-padding", f"below {side}, the images' side, or a crop may be black", by="")
    if experiment.attacked_rounds and experiment.all_attacks:
        with _refusing("auxiliary-data"):
            Auxiliary(experiment.plan()).check()
    check_shares(experiment, data)
    with naming("partition"):
        dealt(experiment.plan(), experiment.partition, data, experiment.num_clients)
    for warning in filter(None, (*data.notes, too_few_images(experiment, experiment.num_clients))):
        say(f"warning: {warning}")


def _check_folder(experiment: Experiment, say: Callable[[str], None]) -> None:
    out = Path(experiment.output_dir)
    require_folder(out)
    require_free(out, busy(out), COMMAND_LOCK)
    require_free(out, busy(out))
    if experiment.resume:
        for lost in kept(out)[2]:
            say(f"warning: {lost}")
    else:
        unbegun = FOLDERS if (out / LOCK).is_file() else ()  # of a run that ended before its first round
        require_new(out, "output-dir", f"go on with --resume {out}", ("config.json", "rows.jsonl"), unbegun)


def _check_model(experiment: Experiment, data: ImageDataset, say: Callable[[str], None]) -> None:
    for why in experiment.idle_defenses(*data.input_shape[1:]):
        say(f"warning: {why}")
    check_outline(experiment, data)
    for pipeline in experiment.pipelines:
        if pipeline.needs_group_norm and experiment.norm == "batch":
            say(f"notice: {pipeline} needs gradients per example: BatchNorm is replaced by GroupNorm")
        with _refusing(f"dataset = {experiment.dataset!r}, model = {experiment.model!r}"):
            try:
                experiment.check_data(pipeline, DataCard.of(data))
            except ImageSizeError as error:
                sizes = f"image-size is {experiment.image_size}, model is {experiment.model!r}"
                raise ConfigError(f"{sizes}: {error}") from error


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
    except (ValueError, OSError) as error:  # the user's own data are named by the wrong key where they are auxiliary
        raise ConfigError(re.sub("^dataset(?=: )", where.partition(" ")[0], str(error))) from error
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


def check_shares(experiment: Experiment, data: ImageDataset) -> None:
    """Raise ``ConfigError`` where all images of a client, or of all clients, are needed at once and exceed image-memory."""
    limit, size = experiment.image_memory * GIB, share_bytes(experiment, data)
    if experiment.trains_on_server and size * experiment.num_clients > limit:
        raise ConfigError(
            f"image-memory is {experiment.image_memory:g}, and the server holds the images of all {experiment.num_clients} "
            f"clients, {size * experiment.num_clients / GIB:.1f} GiB as floats; raise it, or lower train-limit"
        )
    if (key := experiment.needs_whole_share) and size > limit:
        raise ConfigError(
            f"{key}: all images of a client are {size / GIB:.1f} GiB, and image-memory is {experiment.image_memory:g}; "
            f"set {key} = '', or raise image-memory"
        )


def check_outline(experiment: Experiment, data: ImageDataset) -> None:
    """Refuse a model or images of unusual size that this machine cannot hold, before the model is built.

    Sizes come from torch's meta device, and the run is the smallest one: one client after the other in one process. Models that
    need real numbers while they are built are passed over.
    """
    if is_usual(data.input_shape, experiment.width, getattr(experiment, "depth", 0)):
        return
    try:
        with torch.device("meta"), _LinearAttention():
            peak = measured_peak(experiment, data)
    except TooLargeError as error:
        raise ConfigError(str(error)) from error
    except Exception:  # or of models that are refused elsewhere
        return
    check_fits(experiment, data, peak, workers=0)


def check_run(experiment: Experiment, workers: int) -> float:
    """Measure a training step of a run that passed all other checks; the bytes that the run needs, as ``check_fits`` says."""
    data = experiment.plan().load_data()
    return check_fits(experiment, data, measured_peak(experiment, data), workers)


def check_fits(experiment: Experiment, data: ImageDataset, peak: Peak, workers: int) -> float:
    """Estimate the bytes that a run needs; ``ConfigError``, with settings to lower, where this machine has less.

    ``workers`` are client processes at the same time; 0: clients answer in the server's process.
    """
    needed, machine = required_bytes(experiment, data, peak, workers), memory_of_machine()
    if needed > machine:
        raise ConfigError(
            f"memory: the run needs about {size_text(needed)}, and this machine has {size_text(machine)} in all. Lower batch-size, "
            "image-size, width, attack-workers, train-limit or image-memory, choose another model, give clients more CPUs each "
            "(--cpus-per-client), or run it --in-process"
        )
    return needed


def required_bytes(experiment: Experiment, data: ImageDataset, peak: Peak, workers: int) -> float:
    """Estimate what all processes of a run hold at once: programs, images, training and attacks."""
    plan, sides = experiment.plan(), max(workers, 1)
    attackers, on_server = experiment.attackers, experiment.trains_on_server
    processes = 1 + attackers + (workers + 1 if workers else 0)  # the command that waits has imported torch, too
    share = share_bytes(experiment, data)
    once = any(pipeline.once for pipeline in experiment.pipelines) and not plan.augments
    kept = share * min(experiment.num_clients, MOST_KEPT) if once and share <= experiment.image_memory * GIB else 0
    parts = (part.images for part in (data.train, data.test))
    stored = sum(math.prod(images.shape) for images in parts if not isinstance(images, StoredImages))
    return (
        processes * (PROCESS + stored)
        + (RUNTIME if workers else 0)
        + sides * kept
        + attackers * Auxiliary(plan).size()
        + (share * experiment.num_clients if on_server else 0)
        + (1 if on_server else sides) * peak(experiment.batch_size)
        + max(attackers, bool(experiment.attacked_rounds))
        * ATTACK_STEPS
        * peak(max(rung.size for rung in experiment.rungs))
    )


def shares(experiment: Experiment, data: ImageDataset) -> tuple[int, int, int]:
    """Number of the server's examples, and about that of a client's training and test examples in an even partition."""
    held = len(Auxiliary(experiment.plan()).held_out(data.train.strata()))
    return held, (len(data.train) - held) // experiment.num_clients, len(data.test) // experiment.num_clients


def share_bytes(experiment: Experiment, data: ImageDataset) -> int:
    """Bytes of a client's training images as floats."""
    return shares(experiment, data)[1] * math.prod(data.input_shape) * FLOAT_BYTES


def measured_peak(experiment: Experiment, data: ImageDataset) -> Peak:
    """Run a forward and a backward pass on two and on three images, without a defence."""
    modules, forward = experiment.whole_model(experiment.plan(card=DataCard.of(data)))
    shape, peaks = data.input_shape, list[int]()
    for batch in (2, 3):  # BatchNorm needs two.
        images = (torch.arange(numbers := batch * math.prod(shape)) / numbers).reshape(batch, *shape)
        peaks.append(measure_step(lambda images=images: forward(images), modules, trained=True).peak_bytes)  # type: ignore[misc]
    each = max(peaks[1] - peaks[0], 0)
    fixed = max(peaks[0] - 2 * each, 0)
    return lambda batch: fixed + batch * each


class _LinearAttention(TorchFunctionMode):
    """Attention as processors compute it, without a matrix of all pairs of tokens, which the meta device would make."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(zip(("query", "key", "value"), args, strict=False)) | dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return given["query"] + given["key"].mean() + given["value"].mean()


def size_text(size: float) -> str:
    """Bytes in words."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"
