"""Canaries in a node's data: the number that an image carries survives what happens to batches, and real images carry none."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler, default_collate

from attacks.dp_audit.example_gradients import NO_CANARY
from clients import with_canaries
from clients.external_app.canaries import KEPT, NodeCanaries, places
from clients.external_app.canary_images import MOST_CANARIES, PIXELS, CanaryDataset, numbers_in, spelled

COUNT = 300
IMAGES = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20) % 10
NUMBERS = torch.tensor([0, 1, 7, COUNT - 1])
Pair = namedtuple("Pair", "image label")


def batch_of(shape: tuple[int, ...] = (3, 8, 8)) -> torch.Tensor:
    """A batch of a real image, canaries, and another real image."""
    like = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    return torch.stack([like, *(spelled(like, int(number)) for number in NUMBERS), like.flip(0)])


EXPECTED = torch.tensor([NO_CANARY, *NUMBERS, NO_CANARY])


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch,
        lambda batch: (
            (batch - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
        ),
        lambda batch: batch.double() * -3 + 1,
        lambda batch: batch.half(),
        lambda batch: batch.bfloat16(),
        lambda batch: batch.flatten(1),
        lambda batch: batch.to(memory_format=torch.channels_last),
        lambda batch: (batch * 255).to(torch.uint8),
    ],
)
def test_numbers_are_read_after_what_apps_do_to_batches(change: Any) -> None:
    assert torch.equal(numbers_in(change(batch_of()), COUNT), EXPECTED)


def test_numbers_are_read_from_grey_and_channels_last_images_and_vectors() -> None:
    assert torch.equal(numbers_in(batch_of((1, 8, 8)), COUNT), EXPECTED)
    assert torch.equal(numbers_in(batch_of((8, 8)), COUNT), EXPECTED)
    assert torch.equal(numbers_in(batch_of((64,)), COUNT), EXPECTED)
    assert torch.equal(numbers_in(batch_of((8, 8, 3)).permute(0, 3, 1, 2), COUNT), EXPECTED)


def test_black_two_valued_and_noisy_images_carry_no_number() -> None:
    generator = torch.Generator().manual_seed(2)
    odd = torch.stack(
        [torch.zeros(3, 8, 8), torch.ones(3, 8, 8), *(torch.rand(50, 3, 8, 8, generator=generator) < 0.5)]
    )
    assert (numbers_in(odd, MOST_CANARIES) == NO_CANARY).all()
    assert (numbers_in(batch_of() + 0.01 * torch.rand(6, 3, 8, 8, generator=generator), COUNT) == NO_CANARY).all()
    assert (numbers_in(batch_of(), 1)[2:] == NO_CANARY).all(), "a number beyond those of the node"
    assert numbers_in(torch.zeros(0, 3, 8, 8), COUNT).shape == (0,)
    assert (numbers_in(torch.rand(4, 10), COUNT) == NO_CANARY).all(), "too short to carry one"


def test_canaries_have_the_range_and_type_of_the_image_that_they_copy() -> None:
    like = IMAGES[0]
    made = spelled(like, 5)
    assert (made.shape, made.dtype) == (like.shape, like.dtype)
    assert set(made.unique().tolist()) == {float(like.min()), float(like.max())}
    flat = spelled(torch.zeros(1, 8, 8), 5)
    assert flat.unique().tolist() == [0.0, 1.0], "a black image has one value"


@pytest.mark.parametrize(
    "item",
    [
        lambda at: (IMAGES[at], int(LABELS[at])),
        lambda at: [IMAGES[at], LABELS[at]],
        lambda at: Pair(IMAGES[at], LABELS[at]),
        lambda at: {"img": IMAGES[at], "label": int(LABELS[at]), "id": "x"},
    ],
)
def test_items_keep_their_form_and_their_label(item: Any) -> None:
    own = [item(at) for at in range(5)]
    data = CanaryDataset(own, [3, 9])
    assert len(data) == 7
    assert [data[at] is own[at] for at in range(5)] == [True] * 5
    assert type(data[6]) is type(own[0])
    batch = default_collate([data[at] for at in range(7)])
    images = batch["img"] if isinstance(batch, dict) else batch[0]
    labels = batch["label"] if isinstance(batch, dict) else batch[1]
    assert numbers_in(images, COUNT).tolist() == [NO_CANARY] * 5 + [3, 9]
    assert labels[5:].tolist() == [0, 0]
    with pytest.raises(IndexError):
        data[7]


def node(tmp_path: Any = None, **config: Any) -> Context:
    return Context(1, 5, {"partition-id": 0, "num-partitions": 2, "randomness": "seed", **config}, RecordDict(), {})


def test_a_loader_is_followed_by_one_with_the_same_settings() -> None:
    loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=6, shuffle=True, drop_last=True)
    found, context = with_canaries(loader, node(), count=COUNT), node()
    coins = NodeCanaries(COUNT, 0, 1).coins(context)
    assert (found.batch_size, found.drop_last, type(found.sampler)) == (6, True, type(loader.sampler))
    assert len(found.dataset) == 20 + int(coins.sum())
    assert 0.4 < coins.float().mean() < 0.6
    seen = torch.cat([numbers_in(images, COUNT) for images, _ in DataLoader(found.dataset, batch_size=50)])
    assert torch.equal(seen[20:], coins.nonzero().flatten())


def test_coins_are_new_in_each_training_and_repeat_in_a_simulation() -> None:
    first, second = node(), node()
    data = TensorDataset(IMAGES, LABELS)
    lengths = [len(with_canaries(data, first, count=COUNT)) for _ in range(3)]
    coins = [NodeCanaries(COUNT, 0, training).coins(first) for training in (1, 2)]
    assert not torch.equal(*coins)
    assert (coins[0] == coins[1]).float().mean() < 0.65, "independent"
    assert lengths == [len(with_canaries(data, second, count=COUNT)) for _ in range(3)]
    other = node(**{"partition-id": 1})
    assert not torch.equal(NodeCanaries(COUNT, 0, 1).coins(other), coins[0])
    sizes = {"a": 1000, "b": 10}
    apart = [places(sizes, COUNT, 0, 0, training).weights for training in (1, 2)]
    assert not torch.equal(*apart), "places are drawn anew, too"
    assert all(len(one.unique()) == COUNT for one in apart)


def test_coins_of_a_deployed_node_follow_from_its_own_secret(tmp_path: Any) -> None:
    secret = {"randomness": "secret", "canaries": True}
    mine, other = (node(**secret, **{"secret-dir": str(tmp_path / name)}) for name in ("a", "b"))
    drawn = [NodeCanaries(COUNT, 0, 1).coins(one) for one in (mine, mine, other)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    data = TensorDataset(IMAGES, LABELS)
    assert len(with_canaries(data, mine, count=COUNT)) == 20 + int(drawn[0].sum())


def test_a_node_whose_operator_does_not_allow_canaries_keeps_its_data(tmp_path: Any) -> None:
    data, context = TensorDataset(IMAGES, LABELS), node(randomness="secret", **{"secret-dir": str(tmp_path)})
    assert with_canaries(data, context, count=COUNT) is data
    assert NodeCanaries.kept(context) is None
    assert context.state[KEPT]["training"] == 1  # type: ignore[index]


class Endless(IterableDataset[Any]):
    """No map-style data set."""

    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Endless(), "data is Endless; allowed: a map-style data set"),
        ([], "data holds no example"),
        ([(torch.zeros(PIXELS - 1), 0)], f"an image as a tensor of at least {PIXELS} pixels"),
        (["text"], "an example holds str"),
        ([("text", 3)], "an example holds str, int"),
        (
            DataLoader(TensorDataset(IMAGES, LABELS), sampler=WeightedRandomSampler([1.0] * 20, 20)),
            "chooses its examples by a sampler of its own",
        ),
    ],
)
def test_data_that_cannot_hold_canaries_are_named(data: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        with_canaries(data, node(), count=COUNT)
