"""Canaries in a node's data, mods that act on an app's replies, and originals that a loader keeps."""

import json
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, fixedclipping_mod, message_size_mod
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from attacks.dp_audit.placed_canaries import NO_CANARY
from clients import protect_mod, save_originals, with_canaries
from clients.external_app.canaries import KEPT, NodeCanaries, places
from clients.external_app.canary_images import MOST_CANARIES, CanaryDataset, numbers_in, spelled
from clients.external_app.mods import inner_mods, mods_of, named
from clients.messages.node import Mod
from clients.wire.records import to_record, to_tensors

COUNT = 300
IMAGES = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20) % 10
NUMBERS = torch.tensor([0, 1, 7, COUNT - 1])
Pair = namedtuple("Pair", "image label")


def batch_of(shape: tuple[int, ...] = (3, 8, 8)) -> torch.Tensor:
    like = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    return torch.stack([like, *(spelled(like, int(number)) for number in NUMBERS), like.flip(0)])


EXPECTED = torch.tensor([NO_CANARY, *NUMBERS, NO_CANARY])


def test_numbers_are_read_after_what_apps_do_to_batches() -> None:
    batch = batch_of()
    mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
    for changed in (
        batch, (batch - mean) / std, batch.double() * -3 + 1, batch.half(), batch.bfloat16(), batch.flatten(1),
        batch.to(memory_format=torch.channels_last), (batch * 255).to(torch.uint8), batch_of((1, 8, 8)), batch_of((8, 8)),
        batch_of((64,)), batch_of((8, 8, 3)).permute(0, 3, 1, 2), batch_of((4, 16, 4)),
    ):  # fmt: skip
        assert torch.equal(numbers_in(changed, COUNT), EXPECTED)
    # Black, two-valued and noisy images carry no number.
    noise = torch.rand(50, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    odd = torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8), *(noise < 0.5)])
    assert (numbers_in(odd, MOST_CANARIES) == NO_CANARY).all()
    assert (numbers_in(batch + 0.01 * noise[:6], COUNT) == NO_CANARY).all()
    assert (numbers_in(batch, 1)[2:] == NO_CANARY).all(), "a number beyond those of the node"
    assert numbers_in(torch.zeros(0, 3, 8, 8), COUNT).shape == (0,)
    assert (numbers_in(torch.rand(4, 10), COUNT) == NO_CANARY).all(), "too short to carry one"


def test_items_keep_their_form_and_canaries_their_range() -> None:
    for item in (
        lambda at: (IMAGES[at], int(LABELS[at])), lambda at: [IMAGES[at], LABELS[at]],
        lambda at: Pair(IMAGES[at], LABELS[at]), lambda at: {"img": IMAGES[at], "label": int(LABELS[at]), "id": "x"},
    ):  # fmt: skip
        own = [item(at) for at in range(5)]
        data = CanaryDataset(own, [3, 9])
        assert len(data) == 7
        assert all(data[at] is own[at] for at in range(5))
        assert type(data[6]) is type(own[0])
        batch = default_collate([data[at] for at in range(7)])
        images, labels = (batch["img"], batch["label"]) if isinstance(batch, dict) else batch
        assert numbers_in(images, COUNT).tolist() == [NO_CANARY] * 5 + [3, 9]
        assert labels[5:].tolist() == [0, 0]
        with pytest.raises(IndexError):
            data[7]
    like = IMAGES[0]
    made = spelled(like, 5)
    assert (made.shape, made.dtype) == (like.shape, like.dtype)
    assert set(made.unique().tolist()) == {float(like.min()), float(like.max())}
    flat = spelled(torch.zeros(1, 8, 8), 5)
    assert flat.unique().tolist() == [0.0, 1.0], "a black image has one value"


def node(tmp_path: Any = None, **config: Any) -> Context:
    return Context(1, 5, {"partition-id": 0, "num-partitions": 2, "randomness": "seed", **config}, RecordDict(), {})


@pytest.mark.numeric
def test_a_loader_is_followed_by_one_with_the_same_settings() -> None:
    loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=6, shuffle=True, drop_last=True)
    found, context = with_canaries(loader, node(), count=COUNT), node()
    coins = NodeCanaries(COUNT, 0, 1).coins(context)
    assert (found.batch_size, found.drop_last, type(found.sampler)) == (6, True, type(loader.sampler))
    assert len(found.dataset) == 20 + int(coins.sum())
    assert abs(coins.float().mean() - 0.5) < 5 * 0.5 / COUNT**0.5
    seen = torch.cat([numbers_in(images, COUNT) for images, _ in DataLoader(found.dataset, batch_size=50)])
    assert torch.equal(seen[20:], coins.nonzero().flatten())


def test_coins_are_new_in_each_training_and_follow_from_the_secret_of_a_deployed_node(tmp_path: Any) -> None:
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
    secret = {"randomness": "secret", "canaries": True}
    mine, other = (node(**secret, **{"secret-dir": str(tmp_path / name)}) for name in ("a", "b"))
    drawn = [NodeCanaries(COUNT, 0, 1).coins(one) for one in (mine, mine, other)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert len(with_canaries(data, mine, count=COUNT)) == 20 + int(drawn[0].sum())
    context = node(randomness="secret", **{"secret-dir": str(tmp_path)})
    assert with_canaries(data, context, count=COUNT) is data
    assert NodeCanaries.kept(context) is None
    assert context.state[KEPT]["training"] == 1  # type: ignore[index]


NOISE = LocalDpMod(1.0, 1.0, 10.0, 1e-5)
NOISE_TEXT = "LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-05)"
CLIP = protect_mod("Clip(max_norm=1.0, per='update')")


def app_with(of_app: list[Mod], *of_training: list[Mod]) -> ClientApp:
    app = ClientApp(mods=of_app)
    for at, mods in enumerate(of_training):
        app.train("default" if at == 0 else f"other{at}", mods=mods)(answer)
    return app


def answer(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


def test_mods_are_found_in_the_order_in_which_flower_calls_them() -> None:
    app = app_with([message_size_mod], [fixedclipping_mod, NOISE, CLIP])
    assert mods_of(app) == [message_size_mod, fixedclipping_mod, NOISE, CLIP]
    assert inner_mods(app, mods_of(app)) == [fixedclipping_mod, NOISE, CLIP]
    # On a reply the last one acts first.
    assert named(mods_of(app)) == f"{CLIP.text} | {NOISE_TEXT} | fixedclipping_mod", "that logs sizes protects nothing"
    assert named([message_size_mod, arrays_size_mod]) == ""
    assert mods_of(app_with([], [])) == []


def test_whole_numbers_are_not_sent_where_a_bound_is_claimed() -> None:
    for text, sent in [("Clip()", [5, 0, 9]), ("ClientDP()", [1, 1, 1]), ("FlowerLocalDP()", [1, 1, 1])]:
        before = {"w": torch.zeros(3), "by_class": torch.ones(3, dtype=torch.int64)}
        after = {"w": torch.ones(3), "by_class": torch.tensor([5, 0, 9])}

        def message(tensors: dict[str, torch.Tensor]) -> Any:
            content = RecordDict({"arrays": to_record(tensors)})
            metadata = SimpleNamespace(message_type="train")
            return SimpleNamespace(content=content, metadata=metadata, has_error=lambda: False)

        context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
        reply = protect_mod(text)(message(before), context, lambda *_, after=after: message(after))
        found = to_tensors(reply.content["arrays"])  # type: ignore[arg-type]
        assert found["by_class"].tolist() == sent
        assert not torch.equal(found["w"], after["w"])


MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
WIDE = (1, 3, 1, 1)


def pixels(count: int = 7) -> Tensor:
    return torch.rand(count, 3, 5, 4, generator=torch.Generator().manual_seed(0))


def normalised(images: Tensor) -> Tensor:
    return (images - torch.tensor(MEAN).view(WIDE)) / torch.tensor(STD).view(WIDE)


def loader(images: Tensor, seed: int = 3) -> DataLoader[Any]:
    data = TensorDataset(images, torch.arange(len(images)))
    return DataLoader(data, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(seed))


def test_originals_are_kept_in_the_order_of_the_first_pass_without_a_random_number(tmp_path: Path) -> None:
    plain = [batch[1].tolist() for batch in loader(pixels())]
    kept = save_originals(loader(normalised(pixels())), tmp_path / "o", 11, server_round=2, mean=MEAN, std=STD)
    assert len(kept) == 3
    assert len(kept.dataset) == 7
    assert [batch[1].tolist() for batch in kept] == plain
    file = tmp_path / "o" / "round-0002-node-11.safetensors"
    found, order = load_file(file), [label for batch in plain for label in batch]
    assert found["labels"].tolist() == order
    torch.testing.assert_close(found["images"], pixels()[order], atol=1e-6, rtol=0)
    with safe_open(file, framework="pt") as opened:
        stated = json.loads(opened.metadata()["normalisation"])
    assert stated == {name: pytest.approx(value) for name, value in (("mean", MEAN), ("std", STD))}
    kept = save_originals(loader(pixels()), tmp_path, 5)
    first = next(iter(kept))[1].tolist()
    file = tmp_path / "node-5.safetensors"
    assert load_file(file)["labels"].tolist() == first
    assert sum(len(batch[1]) for batch in kept) == 7
    assert load_file(file)["labels"].tolist() == first
    levels = (pixels(2) * 255).round().to(torch.uint8)
    batches = [{"img": levels, "label": torch.tensor([1, 0]), "more": "text"}]
    assert list(save_originals(batches, tmp_path, 1, mean=0.5, std=0.5)) == batches
    torch.testing.assert_close(load_file(tmp_path / "node-1.safetensors")["images"], levels.float() / 255)
    before = torch.get_rng_state()
    list(save_originals([(pixels(), torch.arange(7))], tmp_path, 1))
    assert torch.equal(before, torch.get_rng_state())
