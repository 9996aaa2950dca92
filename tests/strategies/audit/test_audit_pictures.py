"""The numbers under which guesses are pictured."""

from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import RecordDict

from attacks import InvertingGradients
from attacks.guesses import Reconstruction
from attacks.metrics.names import scores_to_texts
from clients.scoring.audit import audit_baselines, audit_guesses
from clients.wire.records import metrics
from strategies.audit.audit_pictures import AuditPictures
from strategies.audit.jobs import Outcome
from strategies.audit.threat_card import ThreatCard
from tests.clients.federated.test_client import TASK, client
from tests.strategies.stub_grid import reply_of


def test_a_guess_has_the_number_of_the_original_that_the_client_compares_it_with() -> None:
    for steps, observation, order in (
        (0, "probe", [2, 0, 1]), (0, "probe", [1, 2]), (2, "update", [3, 1, 0, 2]), (0, "probe", [2, 2, 2, 2]),
    ):  # fmt: skip
        one, found = client(probe_images=3, local_steps=steps, batch_size=2), list[Any]()
        shared = audit_baselines(one, observation, pictures=True, images=1).pictures
        images = [view.original.images[order] for view in one.truths(observation).views]
        guesses = [Reconstruction(of, torch.full((len(of),), -1)) for of in images]
        scores = audit_guesses(one, observation, [(guess, None) for guess in guesses]).scores
        reply = reply_of(RecordDict({"metrics": metrics(scores_to_texts(scores))}))
        recorder = SimpleNamespace(picture=lambda _, image, found=found, **about: found.append((image, about)))
        job: Any = SimpleNamespace(task=TASK, card=ThreatCard(observation="one-step probe"))
        outcome = Outcome(InvertingGradients(), guesses, 0.0)
        of_both = {partition: list(enumerate(guesses)) for partition in (0, 1)}  # 1 does not answer
        AuditPictures(recorder).keep_guesses(job, outcome, of_both, {0: reply})
        assert len(found) == len(images) * len(order)
        if len(order) > 3 and not steps:  # only the client knows which of too many it scored
            assert [(about["image_number"], about["psnr"]) for _, about in found] == [(at, None) for at in range(4)] * 2
            continue
        for image, about in found:
            assert torch.equal(image, shared[f"original-{about['target']}-{about['image_number']}"])
            assert about["psnr"] > 90
