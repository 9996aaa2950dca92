"""Split training at the client, against steps worked out by hand; tests of the server have the whole model as a slow loop."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.local_model import shared_tensors
from attacks.normalisation import normalise
from clients.federated.client import TrainingError
from clients.models.split.halves import EdgeHalf, RawPatches
from clients.split import training as split_training
from clients.split.plan import SplitPasses, SplitPlan
from clients.split.training import NETWORK, EdgeState, SplitClient
from clients.task.local_data import LocalData

TASK = SplitPlan(
    dataset="mnist-5k", data_dir="", download=False, image_size=0, train_limit=200, test_limit=50, model="vit", width=16,
    norm="group", pipeline="", seed=3, rounds=2, local_epochs=1, batch_size=8, momentum=0.9,
    weight_decay=0.01, probe_targets=2, probe_images=2, scenario="split", patch_size=7, depth=2, heads=2, edge_blocks=1,
    train_edge=True,
).at(1, 0.02)  # fmt: skip
ADVERSARY = "AdversarialTraining(weight={})"
Weights = dict[str, Tensor]


def client(partition: int = 0, num_train: int = 40, num_test: int = 20, **changes: object) -> SplitClient:
    return SplitClient(LocalData(TASK.but(**changes), partition, range(num_train), range(num_test)))


def initial(one: SplitClient) -> EdgeState:
    return EdgeState({name: tensor.clone() for name, tensor in shared_tensors(one.load_edge({})).items()})


def frozen(one: SplitClient, state: EdgeState) -> EdgeHalf:
    return one.load_edge(state.weights).requires_grad_(False)


def close(first: Weights, second: Weights, tolerance: float) -> bool:
    assert first.keys() == second.keys()
    return all(torch.allclose(first[name], second[name], rtol=0, atol=tolerance) for name in first)


def some_gradient(one: SplitClient, seed: int = 0) -> Tensor:
    edge = one.load_edge({})
    shape = (one.task.plan.batch_size, edge.num_tokens, edge.dim)
    return 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sent(pipeline: str, number: int = 0, partition: int = 0, **changes: object) -> Tensor:
    one = client(partition, num_train=8, pipeline=pipeline, **changes)
    smashed = one.batches.smash(frozen(one, initial(one)), number)
    return smashed.features[smashed.examples.argsort()]


def test_a_batch_is_the_same_when_computed_again_and_protected_anew_elsewhere() -> None:
    plain, once = sent(""), sent("ImageNoise()")
    for elsewhere in ({"number": 1}, {"round": 2}, {"partition": 1}):
        torch.testing.assert_close(sent("", **elsewhere), plain, atol=1e-6, rtol=1e-5)
        same = elsewhere != {"partition": 1}  # an image that is protected once is sent the same in every round
        assert torch.allclose(sent("ImageNoise()", **elsewhere), once, atol=1e-6, rtol=1e-5) == same
    assert not torch.allclose(plain, once, atol=1e-3)
    for pipeline in ("PatchShuffle()", "BatchShuffle(k=0.5)", "FeatureNoise(std=1.0)", "InstaHide()"):
        first = sent(pipeline)
        assert torch.equal(first, sent(pipeline)), pipeline
        for elsewhere in ({"number": 1}, {"round": 2}, {"partition": 1}, {"seed": 4}):
            assert not torch.allclose(first, sent(pipeline, **elsewhere), atol=1e-3), (pipeline, elsewhere)


def test_passes_cover_all_examples_and_no_example_is_left_alone() -> None:
    for num_train, changes, sizes in (
        (16, {}, [8, 8]), (16, {"local_epochs": 2}, [8, 8, 8, 8]), (18, {}, [8, 8, 2]), (17, {"local_epochs": 2}, [8, 8, 8, 8]),
        (16, {"local_steps": 3}, [8, 8, 8]), (16, {"local_steps": 1, "local_epochs": 5}, [8]), (1, {}, [1]),
        (3, {"batch_size": 1}, [1, 1, 1]),
    ):  # fmt: skip
        one = client(num_train=num_train, **changes)
        edge = frozen(one, initial(one))
        batches = [one.batches.smash(edge, number).examples.tolist() for number in range(len(one.batches))]
        assert [len(batch) for batch in batches] == sizes
        whole = len(sizes) if one.task.plan.local_steps else len(sizes) // one.task.plan.local_epochs
        for first in range(0, len(sizes), whole):
            seen = list(itertools.chain(*batches[first : first + whole]))[:num_train]
            assert len(set(seen)) == len(seen)
            assert set(seen) <= set(range(num_train))


def test_gradients_of_one_message_are_all_taken_at_the_weights_their_batches_were_sent_with() -> None:
    one, gradients = client(), [some_gradient(client(), seed) for seed in (0, 1)]
    start = initial(one)
    taken = []
    for number, gradient in enumerate(gradients, start=2):
        edge = one.load_edge(start.weights)
        (one.batches.smash(edge, number).features * gradient).sum().backward()
        taken.append({name: parameter.grad for name, parameter in edge.named_parameters()})
    late = one.apply_gradients(start, 2, gradients)
    assert late.steps == 2
    rate, decay, momentum = TASK.learning_rate, TASK.plan.weight_decay, TASK.plan.momentum
    for name, weight in start.weights.items():
        velocity = taken[0][name] + decay * weight
        middle = weight - rate * velocity
        velocity = momentum * velocity + taken[1][name] + decay * middle
        torch.testing.assert_close(late.weights[name], middle - rate * velocity, atol=1e-6, rtol=1e-5)
    in_turn = one.apply_gradients(one.apply_gradients(start, 2, gradients[:1]), 3, gradients[1:])
    assert not close(in_turn.weights, late.weights, 1e-6)


def test_what_is_kept_between_messages_suffices_and_is_left_as_it_was() -> None:
    for optimizer, pipeline in (("sgd", ADVERSARY.format(1.0)), ("adamw", "")):
        one = client(optimizer=optimizer, pipeline=pipeline)
        state = one.apply_gradients(initial(one), 0, [some_gradient(one)])
        kept: EdgeState = pickle.loads(pickle.dumps(state))
        # Applied twice: the first time must not write into what is kept.
        after = [one.apply_gradients(one_state, 1, [some_gradient(one, 1)]) for one_state in (state, state, kept)]
        assert close(after[0].weights, after[1].weights, 0)
        assert close(after[0].weights, after[2].weights, 0)
        assert close(state.weights, kept.weights, 0)
        assert close(state.optimizer, kept.optimizer, 0)
        forgotten = one.apply_gradients(EdgeState(state.weights), 1, [some_gradient(one, 1)])
        assert not close(forgotten.weights, after[0].weights, 1e-5)


def test_a_gradient_that_is_not_finite_or_of_another_shape_is_an_error() -> None:
    for optimizer in ("sgd", "adamw"):
        one = client(optimizer=optimizer)
        for bad in (torch.nan, torch.inf):
            gradient = some_gradient(one)
            gradient[3, 2, 1] = bad
            with pytest.raises(TrainingError, match=r"not finite; lower block-learning-rate \(now 0.02\)"):
                one.apply_gradients(initial(one), 0, [gradient])
    with pytest.raises(TrainingError, match=r"batch 4 is \(8, 15, 16\), expected \(8, 16, 16\)"):
        one.apply_gradients(initial(one), 4, [some_gradient(one)[:, 1:]])


def test_a_defence_per_step_acts_on_every_step_of_the_client_half_and_on_audited_ones() -> None:
    pruned = client(pipeline="Pruning(fraction=1.0)", momentum=0.0)
    state = pruned.apply_gradients(initial(pruned), 0, [some_gradient(pruned)] * 3)
    kept = (1 - 0.02 * 0.01) ** 3
    for name, weight in initial(pruned).weights.items():
        torch.testing.assert_close(state.weights[name], weight * kept, atol=1e-6, rtol=1e-5)
    clipped = client(pipeline="Clip(max_norm=0.01, per='step')", weight_decay=0.0)
    sent = clipped.audits.step(clipped.load_edge({}), 0, 100 * some_gradient(clipped))
    length = torch.cat([value.flatten() for value in sent.values()]).norm()
    assert length.item() == pytest.approx(0.02 * 0.01, rel=1e-4)


def test_a_frozen_client_half_keeps_its_first_weights_whatever_the_server_sends() -> None:
    moved = {name: weight + 1 for name, weight in initial(client()).weights.items()}
    assert close(dict(shared_tensors(client().load_edge(moved))), moved, 0)
    still = client(train_edge=False).load_edge(moved)
    assert close(dict(shared_tensors(still)), initial(client()).weights, 0)
    assert not any(weight.requires_grad for weight in still.parameters())


def network_of(state: EdgeState) -> Weights:
    return {name.removeprefix(NETWORK): t for name, t in state.weights.items() if name.startswith(NETWORK)}


def test_the_simulated_attacker_is_trained_by_adam_on_its_own_loss_and_stays_at_the_client() -> None:
    one = client(pipeline=ADVERSARY.format(2.0))
    start, gradient = initial(one), some_gradient(one)
    state = one.apply_gradients(start, 0, [gradient])
    half = set(start.weights)
    assert network_of(state)
    assert set(state.weights) == half | {NETWORK + name for name in network_of(state)}
    assert set(one.edge_update(start.weights, state.weights)) == half
    # Adversarial training trains the half unasked.
    assert SplitPlan.narrow(client(train_edge=False, pipeline=ADVERSARY.format(1.0)).task.plan).trains_edge
    assert not SplitPlan.narrow(client(train_edge=False, pipeline="PatchShuffle()").task.plan).trains_edge
    # The second step by hand, from the network and the half as they were kept.
    network = one.pipeline.edge_training.build_network(16, 16, 49, torch.Generator())
    network.load_state_dict(network_of(state))
    edge, names = one.load_edge(state.weights), [name for name, _ in network.named_parameters()]
    sent = one.batches.smash(edge, 1)
    patches = RawPatches(7)(one.data.originals().images[sent.examples])
    mse = F.mse_loss(network(sent.features), patches)
    own = torch.autograd.grad(mse, list(network.parameters()), retain_graph=True)
    against = torch.autograd.grad((sent.features * gradient).sum() - 2 * mse, list(edge.parameters()))
    later = one.apply_gradients(state, 1, [gradient])
    first = [state.optimizer[f"1/{at}/exp_avg"] for at in range(len(names))]
    for at, gradient in enumerate(own):
        expected = 0.9 * first[at] + 0.1 * gradient
        torch.testing.assert_close(later.optimizer[f"1/{at}/exp_avg"], expected, atol=1e-7, rtol=1e-4)
    for at, (gradient, (name, weight)) in enumerate(zip(against, edge.named_parameters(), strict=True)):
        velocity = 0.9 * state.optimizer[f"0/{at}/momentum_buffer"] + gradient + TASK.plan.weight_decay * weight
        expected = (weight - TASK.learning_rate * velocity).detach()
        torch.testing.assert_close(later.weights[name], expected, atol=1e-6, rtol=1e-4)


def test_smashed_test_images_are_the_clients_in_order_and_judged_as_a_person_would_count() -> None:
    one, shuffled = client(), client(pipeline="PatchShuffle()")
    edge = frozen(one, initial(one))
    whole = edge(normalise(one.data.test_plain(torch.arange(one.data.num_test)).images, one.data.card))
    parts = torch.cat([one.smash_test(edge, first, 8) for first in (0, 8, 16)])
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)
    sent = shuffled.smash_test(edge, 0, 20)
    assert torch.equal(sent, shuffled.smash_test(edge, 0, 20))
    assert not torch.allclose(sent, whole, atol=1e-3)
    torch.testing.assert_close(sent.sum(1), whole.sum(1), atol=1e-4, rtol=1e-4)
    one, logits = client(), torch.randn(20, 10, generator=torch.Generator().manual_seed(2))
    truth = one.data.test_plain(torch.arange(one.data.num_test)).targets.argmax(1).tolist()
    logits[torch.arange(0, 20, 2), truth[::2]] += 3
    pairs = [(t, max(range(10), key=row.__getitem__)) for t, row in zip(truth, logits.tolist(), strict=True)]
    counts = one.judge(logits)
    assert counts["true-positives"] == [sum(t == g == k for t, g in pairs) for k in range(10)]
    assert counts["false-positives"] == [sum(g == k != t for t, g in pairs) for k in range(10)]
    assert counts["false-negatives"] == [sum(t == k != g for t, g in pairs) for k in range(10)]
    assert 0 < sum(counts["true-positives"]) < 20
    loss = sum(-float(row.log_softmax(0)[t]) for row, t in zip(logits, truth, strict=True))
    assert (counts["examples"], counts["loss"]) == ([20], [pytest.approx(loss, rel=1e-5)])
    with pytest.raises(ValueError, match="19 logits for 20 test examples"):
        one.judge(logits[:19])
    # Of a table: members score 1 and 3, the others 2 and 0, then one tie.
    truth = torch.tensor([1, 0, 1, 0])
    for scores, above in (([1.0, 2.0, 3.0, 0.0], 3.0), ([1.0, 1.0, 3.0, 0.0], 3.5)):
        given = torch.stack([torch.zeros(4), torch.tensor(scores)], 1)
        assert split_training._pairs(given, truth, float) == {"pairs": [above, 4.0]}


def test_an_audit_batch_is_of_the_size_of_training_and_changes_behind_the_attacked_images_alone() -> None:
    one = client(edge_blocks=0)
    edge = frozen(one, initial(one))
    sent = one.audits.send(edge, 0, 3)
    assert sent.shape == (3, TASK.plan.batch_size, 16, 16)
    attacked = edge.embed(normalise(one.audits.truth(0).original.images, one.data.card))
    pool = edge.embed(normalise(one.data.originals().images, one.data.card))
    for transmission in sent:
        torch.testing.assert_close(transmission[:2], attacked, atol=1e-6, rtol=1e-5)
        distance = (transmission[:, None] - pool).abs().amax((2, 3))
        assert distance.amin(1).max() < 1e-5, "all of them are the client's"
        assert len(distance.argmin(1).unique()) == TASK.plan.batch_size, "and different ones"
    for one_sending, other in itertools.combinations(sent[:, 2:], 2):
        assert not torch.allclose(one_sending, other, atol=1e-3)
    assert torch.equal(one.audits.send(edge, 0, 3), sent)
    assert torch.equal(one.audits.targets(0)[:2], one.audits.truth(0).original.targets)
    assert len(one.audits.targets(0)) == TASK.plan.batch_size
    few = client(num_test=5, auxiliary_data="private")  # a pool smaller than a batch is sent whole
    assert few.audits.send(frozen(few, initial(few)), 0, 1).shape[:2] == (1, 5)


def test_the_told_order_is_the_order_of_the_sending() -> None:
    for pipeline in ["PatchShuffle()", "BatchShuffle(k=0.5)", "PatchShuffle() | BatchShuffle(k=0.25)"]:
        plain, one = client(edge_blocks=0), client(edge_blocks=0, pipeline=pipeline)
        edge = frozen(one, initial(one))
        tokens, sent = plain.audits.send(edge, 1, 2), one.audits.send(edge, 1, 2)
        orders = one.audits.orders(1, 2, 16)
        assert orders.shape == (2, TASK.plan.batch_size, 16)
        assert not torch.equal(orders[0], orders[1])
        for transmission, unshuffled, order in zip(sent, tokens, orders, strict=True):
            torch.testing.assert_close(transmission, unshuffled.flatten(0, 1)[order], atol=1e-6, rtol=1e-5)
        later = client(edge_blocks=0, pipeline=pipeline, round=2).audits.orders(1, 2, 16)
        assert not torch.equal(later, orders), "each round shuffles anew"


def test_where_the_server_holds_the_training_images_test_images_are_attacked() -> None:
    def all_among(few: Tensor, many: Tensor) -> bool:
        return all(any(torch.equal(one, other) for other in many) for one in few)

    for data, attacks_test in (("held-out", False), ("private", True)):
        one = client(auxiliary_data=data, pipeline="PatchShuffle()")
        images = one.audits.truth(0).original.images
        assert all_among(images, one.data.test_plain(torch.arange(one.data.num_test)).images) == attacks_test
        assert all_among(images, one.data.originals().images) == (not attacks_test)
        assert len(one.audits.targets(0)) == TASK.plan.batch_size


def test_the_audit_step_is_one_plain_step_on_the_first_sending() -> None:
    one = client(pipeline="PatchShuffle()", edge_blocks=0)
    edge, gradient = one.load_edge({}), some_gradient(one)
    update = one.audits.step(edge, 1, gradient)
    moved = copy.deepcopy(edge)
    optimizer = torch.optim.SGD(moved.parameters(), lr=TASK.learning_rate, weight_decay=TASK.plan.weight_decay)
    # Unshuffled: the gradient goes back to where each token came from.
    order = one.audits.orders(1, 1, 16)[0]
    origin = torch.zeros_like(gradient).flatten(0, 1).index_copy(0, order.flatten(), gradient.flatten(0, 1))
    tokens = client(edge_blocks=0).audits.send(frozen(one, initial(one)), 1, 1)[0]
    images = one.data.originals().images
    embedded = edge.embed(normalise(images, one.data.card)).detach()
    batch = images[(tokens[:, None] - embedded).abs().amax((2, 3)).argmin(1)]
    (moved(normalise(batch, one.data.card)) * origin.view_as(gradient)).sum().backward()
    optimizer.step()
    for (name, after), before in zip(moved.named_parameters(), edge.parameters(), strict=True):
        torch.testing.assert_close(update[name], (after - before).detach(), atol=1e-6, rtol=1e-4)


def test_nobody_is_sent_more_often_than_is_accounted() -> None:
    for steps, epochs, size, examples in [(1, 1, 16, 33), (1, 1, 8, 40), (3, 1, 16, 40), (0, 2, 16, 34)]:
        counts = torch.zeros(examples)
        for at in range(1, 21):
            one = client(num_train=examples, round=at, local_steps=steps, local_epochs=epochs, batch_size=size)
            drawn = [one.batches._examples(number) for number in range(len(one.batches))]
            assert [len(part) for part in drawn] == SplitPasses(one.task, examples).batches()
            counts += torch.bincount(torch.cat(drawn), minlength=examples)
            assert counts.max() <= SplitPasses(one.task, examples).transmissions(at)
        assert counts.max() == SplitPasses(one.task, examples).transmissions(20)
