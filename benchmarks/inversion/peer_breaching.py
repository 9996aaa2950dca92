"""The package breaching 0.1.2 on updates, as published or with the batch statistics that an update carries.

A peer is named as in ``parsed``: "breaching" is ``attack=invertinggradients`` as published. "breaching, matched 0.1" adds its
``deep_inversion`` at a scale of 0.1, which matches the statistics of the guess to the sent ones, and leaves the network in train
mode. "breaching, fixed 0.1" gives it the sent statistics as a client's buffers, with which it normalises the guess, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attacks.gradient.trial_gradients.batch_statistics import sent_statistics
from attacks.observations import ClientUpdate

THEIRS = "breaching"
MATCHED, FIXED = "matched", "fixed"


def parsed(name: str) -> tuple[str, float]:
    """(How it uses statistics, scale of ``deep_inversion``) of a peer's name; ("", 0.0) for breaching as published."""
    begins, _, rest = name.partition(", ")
    use, _, scale = rest.partition(" ")
    if begins != THEIRS or (rest and use not in (MATCHED, FIXED)) or (rest and not scale):
        raise ValueError(f"peer is {name!r}; allowed: {THEIRS}, or {THEIRS}, {MATCHED} or {FIXED} and a scale")
    return use, float(scale or 0.0)


def reconstructed(
    name: str,
    seen: Sequence[ClientUpdate],
    classes: int,
    iterations: int,
    seed: int = 0,
) -> list[Tensor]:
    """Its guesses (b, C, H, W) for each update, one after the other, as breaching works; each is of one step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import breaching  # type: ignore[import-not-found]
        from omegaconf import OmegaConf, open_dict  # type: ignore[import-not-found]
    use, scale = parsed(name)
    settings = breaching.get_config(overrides=["attack=invertinggradients"]).attack
    with open_dict(settings):
        settings.optim.max_iterations = iterations
        settings.optim.callback = iterations + 1
        if use:
            settings.regularization.deep_inversion = {"scale": scale}
    found = []
    for at, one in enumerate(seen):
        torch.manual_seed(1000 * seed + at)
        about = {"modality": "vision", "shape": list(one.input_shape), "mean": list(one.mean), "std": list(one.std)}
        metadata = OmegaConf.create({**about, "classes": classes, "task": "classification"})
        attacker = breaching.attacks.prepare_attack(one.model, nn.CrossEntropyLoss(), settings)
        # Without buffers it attacks a network in train mode.
        buffers = None if one.train_mode else list(one.model.buffers())
        parameters = [parameter.detach() for parameter in one.model.parameters()]
        sent = one.gradient()
        known = {"num_data_points": one.num_examples, "labels": one.labels, "local_hyperparams": None}
        shared: dict[str, Any] = {
            "gradients": [sent[n] for n, _ in one.model.named_parameters()],
            "buffers": None,
            "metadata": known,
        }
        if use == FIXED:
            shared["buffers"] = with_statistics(one)
        elif use == MATCHED:
            keep_statistics(attacker, with_statistics(one))
        payload = {"parameters": parameters, "buffers": buffers, "metadata": metadata}
        result, _ = attacker.reconstruct([payload], [shared], {})
        guess = result["data"].detach()
        mean, std = (torch.tensor(values, device=guess.device).view(-1, 1, 1) for values in (one.mean, one.std))
        found.append((guess * std + mean).clamp(0, 1))
    return found


def with_statistics(one: ClientUpdate) -> list[Tensor]:
    """The model's buffers in their order, with the mean and variance of the batch in place of the running averages."""
    known = {}
    for layer, (mean, variance) in sent_statistics(one).items():
        known |= {f"{layer}.running_mean": mean, f"{layer}.running_var": variance}
    return [known.get(name, buffer) for name, buffer in one.model.named_buffers()]


def keep_statistics(attacker: Any, buffers: Sequence[Tensor]) -> None:
    """Let breaching's models in train mode hold ``buffers``, which ``deep_inversion`` matches; it resets them otherwise."""
    construct = attacker._construct_models_from_payload_and_buffers

    def constructed(*given: Any) -> Any:
        models = construct(*given)
        for model in models:
            for kept, value in zip(model.buffers(), buffers, strict=True):
                kept.data.copy_(value)
        return models

    attacker._construct_models_from_payload_and_buffers = constructed
