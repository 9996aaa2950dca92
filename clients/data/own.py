"""The user's own data, by ``file.py:function`` or ``package.module:function`` that returns map-style torch data sets."""

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clients.data.files.decoding import levels_of
from clients.data.images import DataError, Labels, Part, Rows, Source, resize
from clients.process.own_code import OwnCodeError, accepted, own_code
from defenses.tensors import ImageShape

GROUP = "fedveil.datasets"
"""Entry points of data sets."""
MOST_CLASSES = 100_000
MOST_EXAMINED = 16
"""Images of each part, evenly spaced, that are read twice; one that is flipped in half of the readings is found almost surely."""
MOST_MEASURED = 2000
"""Training images from which mean and standard deviation are computed, evenly spaced."""


def own_source(name: str) -> Source:
    """Training and test data of the user's function, called without arguments: each a sequence of (image, class).

    An image is a picture of PIL, a tensor (C, H, W) or an array (H, W) or (H, W, C): uint8, or floats in [0, 1]; a class is a
    whole number from 0. A data set with a list ``classes``, as torchvision's have, names them. ``DataError`` for anything else.
    """
    train, test = _both_parts(name)
    return source_of(f"{name}()", train, test)


def _wrong(what: str) -> DataError:
    return DataError(f"dataset: {what}")


def _both_parts(name: str) -> tuple[Any, Any]:
    try:
        load = own_code(name)
        accepted(name, load, {})
    except OwnCodeError as error:
        raise _wrong(str(error)) from error
    try:
        parts = load()
    except (Exception, SystemExit) as error:
        raise _wrong(f"{name}() raises {type(error).__name__}: {error}") from error
    if not isinstance(parts, Sequence) or len(parts) != 2:
        raise _wrong(f"{name}() returns {type(parts).__name__}; (train, test) of two data sets is expected")
    if parts[0] is parts[1]:
        raise _wrong(f"{name}() returns the same object as train and as test; two data sets are expected")
    return parts[0], parts[1]


def source_of(name: str, train_data: Any, test_data: Any) -> Source:
    """Two map-style data sets of (image, class), for ``own_source``; ``DataError`` for an example that does not fit."""
    train, test = _part(f"{name}, train", train_data), _part(f"{name}, test", test_data)
    count = int(max(train.labels.max(), test.labels.max())) + 1
    # A node's own examples may be of some classes where the data set names the others.
    whole = train_data
    while not hasattr(whole, "classes") and hasattr(whole, "dataset"):  # such as a Subset of torch.utils.data
        whole = whole.dataset
    titles = [str(title) for title in getattr(whole, "classes", ())]
    if 0 < len(titles) < count:
        last = len(titles) - 1
        raise _wrong(f"{name} has the class {count - 1}, and 'classes' names {last + 1}, 0 to {last}")
    seen = np.union1d(train.labels, test.labels)
    if count < 2 or (not titles and len(seen) < 2):
        raise _wrong(f"{name} has only the class {count - 1}; allowed: 2 or more classes")
    if not titles and (absent := np.setdiff1d(range(count), seen).tolist()):
        more = f" and {len(absent) - 3} more have" if len(absent) > 3 else " has" if len(absent) == 1 else " have"
        raise _wrong(
            f"{name}: of the classes 0 to {count - 1}, {', '.join(map(str, absent[:3]))}{more} no example; number them "
            "from 0 without gaps, leave out examples without a class, such as 255, or name all in a list 'classes'"
        )
    names = tuple(titles or map(str, range(count)))
    images = train.read(np.linspace(0, len(train.labels) - 1, min(len(train.labels), MOST_MEASURED)).astype(np.intp), 0)
    flat = images.movedim(1, 0).flatten(1).float() / 255
    mean, std = flat.mean(1), flat.std(1).clamp_min(1e-3)
    return Source(train, test, names, tuple(mean.tolist()), tuple(std.tolist()))


def _part(what: str, data: Any) -> Part:
    if not isinstance(data, Sized) or not hasattr(data, "__getitem__"):
        raise _wrong(f"{what} is {type(data).__name__}; a map-style data set with len() and [i] is expected")
    if len(data) == 0:
        raise _wrong(f"{what} has no examples")
    labels = _labels(what, data)
    for at in sorted({*np.linspace(0, len(data) - 1, MOST_EXAMINED).astype(int).tolist()}):
        if not torch.equal(_image(what, data, at), _image(what, data, at)):
            raise _wrong(
                f"{what}[{at}] is another image at every reading; leave augmentations to crop-padding and "
                "horizontal-flip: what was attacked could not be scored"
            )
    shape = tuple(_image(what, data, 0).shape)

    def read(indices: Rows, size: int) -> Tensor:
        images = []
        for at in indices.tolist():
            image = _image(what, data, at)
            if tuple(image.shape) != shape:
                raise _wrong(f"{what}[{at}] has shape {tuple(image.shape)}, and [0] has {shape}; one size is expected")
            images.append(image)
        return resize(torch.stack(images), size)

    def shape_of(_: Rows, size: int) -> ImageShape:
        return shape[0], size or shape[1], size or shape[2]

    return Part(labels, read, shape_of)


def _labels(what: str, data: Any) -> Labels:
    """Of all examples; from ``targets`` where the data set has them, so that no image is decoded for its class."""
    targets = getattr(data, "targets", None)
    if targets is None or len(targets) != len(data):
        targets = [_example(what, data, at)[1] for at in range(len(data))]
    try:
        labels = np.asarray(targets)
    except (ValueError, TypeError) as error:
        raise _wrong(f"{what} has labels of several lengths; one class for each example is expected") from error
    if labels.shape not in ((len(data),), (len(data), 1)):
        raise _wrong(
            f"{what} has labels of shape {labels.shape}; one class for each of the {len(data)} examples is expected"
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise _wrong(f"{what} has labels of {labels.dtype}; whole numbers from 0 are expected")
    if labels.min() < 0:
        raise _wrong(f"{what} has the class {labels.min()}, and 0 is the lowest; leave examples without a class out")
    if labels.max() >= MOST_CLASSES:
        raise _wrong(f"{what} has the class {labels.max()}; allowed: 0 to {MOST_CLASSES - 1}, without gaps")
    return labels.astype(np.int64).reshape(-1)


def _example(what: str, data: Any, at: int) -> tuple[Any, Any]:
    try:
        example = data[at]
    except (Exception, SystemExit) as error:
        raise _wrong(f"{what}[{at}] raises {type(error).__name__}: {error}") from error
    if not isinstance(example, (tuple, list)) or len(example) != 2:
        raise _wrong(f"{what}[{at}] is {type(example).__name__}; (image, class) is expected")
    return example[0], example[1]


def _image(what: str, data: Any, at: int) -> Tensor:
    image = _example(what, data, at)[0]
    from PIL import Image

    if isinstance(image, Image.Image):
        try:
            return levels_of(image)
        except DataError as error:
            raise _wrong(f"the image of {what}[{at}] {error}") from None
    if not isinstance(image, Tensor):
        array = np.asarray(image)
        if array.dtype not in (np.uint8, np.float16, np.float32, np.float64):
            raise _wrong(
                f"the image of {what}[{at}] is {type(image).__name__} of {array.dtype}; a picture of PIL, or uint8 or "
                "floats in [0, 1], is expected"
            )
        array = np.array(array)
        image = torch.from_numpy(array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0).copy())
    if image.dim() == 2:
        image = image[None]
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise _wrong(
            f"the image of {what}[{at}] has shape {tuple(image.shape)}; (C, H, W) with 1 or 3 channels is expected"
        )
    if image.dtype == torch.uint8:
        return image
    if not image.is_floating_point() or not ((image >= 0) & (image <= 1)).all():
        low, high = float(image.min()), float(image.max())
        raise _wrong(
            f"the image of {what}[{at}] is {image.dtype} from {low:g} to {high:g}; uint8, or floats in [0, 1] (not "
            "normalised), are expected"
        )
    return (image * 255).round().to(torch.uint8)
