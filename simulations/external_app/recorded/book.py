"""What attacks on a recording leave on disk: rows, pictures, guesses and the configuration, as those of a run."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from attacks import Attack, ClientUpdate, Labels, Reconstruction
from attacks.spec import stages_of
from simulations.external_app.recorded.attack_file import crashed, guess_of
from simulations.external_app.recorded.originals import Scores, Truth
from simulations.external_app.recorded.replies import Attackable, RecordingRequest, Replay
from simulations.external_app.recorded.results import file_names, guess_tensors, write_pictures
from simulations.report.sections.recorded.analysis import RECORDED
from simulations.run_folder.line_files import json_lines
from simulations.run_folder.rows import Row
from simulations.run_folder.run_config import versions
from simulations.run_folder.run_directory import write_atomically
from strategies.audit.adaptive import adaptive_names
from strategies.audit.score_rows import PICKED_DETAIL, PICKED_GAIN, PICKED_PSNR, PICTURED, score_rows
from strategies.audit.threat_card import KnownLabels, ThreatCard
from strategies.external_app.orders import OF_ROUND, OF_SETTINGS
from strategies.federated.observations import UPDATE
from strategies.recording.usual_names import RATES


@dataclass(frozen=True)
class PreparedRecording:
    """A recording that can be attacked. The truth is kept apart: it is looked at when a guess is made.

    Attributes:
        asked: As asked.
        replayed: The replies.
        attacks: In order; those that learn have learned.
        truth: (round, client) -> its true examples; empty without.
        auxiliary: What the attacks learned from, in words.
    """

    asked: RecordingRequest
    replayed: Replay
    attacks: Sequence[Attack[Any, Any]]
    truth: Mapping[tuple[int, int], Truth]
    auxiliary: str


class Book:
    """Rows and pictures of the attacked rounds of a recording, and how they are written.

    Args:
        prepared: What is attacked.
        out: Folder with ``pictures`` and ``guesses``.
    """

    def __init__(self, prepared: PreparedRecording, out: Path) -> None:
        self.prepared, self.out = prepared, out
        self.asked, self.request = prepared.asked, prepared.asked.request
        self.names = file_names(prepared.attacks)
        self.defense = str(prepared.replayed.attackable[0].parsed.pipeline)
        self.rows: list[Row] = []
        self.pictures: list[dict[str, Any]] = []

    def attack(self, server_round: int, replies: Sequence[Attackable], begin: Callable[[str], object] = str) -> None:
        """All attacks on the replies of a round; ``begin`` takes what each is called before it begins."""
        card = self._card(server_round, replies)
        self._row(
            server_round, RECORDED, value=float(len(replies)), n=len(replies), extra=self._about(server_round, replies)
        )
        self._baselines(server_round, replies, card)
        observed = [one.observe() for one in replies]
        guesses: list[dict[str, Tensor]] = [{} for _ in replies]
        try:
            for attack, name in zip(self.prepared.attacks, self.names, strict=True):
                start = time.perf_counter()
                begin(f"round {server_round}: {attack!r}")
                found = [
                    _safe(attack, seen, self.request.seed, server_round, one.client)
                    for one, seen in zip(replies, observed, strict=True)
                ]
                seconds = round(time.perf_counter() - start, 3)
                self._scores(server_round, replies, attack, found, card, seconds)
                for one, guess, kept in zip(replies, found, guesses, strict=True):
                    kept |= {f"{name}/{kind}": tensor for kind, tensor in guess_tensors(guess).items()}
                    self._keep_pictures(one, attack, name, guess)
        finally:  # who interrupts a round keeps what its first attacks guessed
            for one, kept in ((one, kept) for one, kept in zip(replies, guesses, strict=True) if kept):
                save_file(kept, self.out / "guesses" / f"round-{server_round:04d}-client-{one.client}.safetensors")

    def write(self, *, finished: bool) -> None:
        """Everything so far."""
        text = "".join(row.to_json() + "\n" for row in self.rows)
        write_atomically(self.out / "rows.jsonl", text)
        write_atomically(self.out / "pictures" / "index.jsonl", json_lines(self.pictures))
        pipeline = self.prepared.replayed.attackable[0].parsed.pipeline
        described = {
            "adaptive_attacks": adaptive_names(pipeline, [UPDATE], False),
            "sources": [one.source for one in pipeline.defenses],
            "caveats": [one.caveat for one in pipeline.defenses if one.caveat],
        }
        rounds = sorted({one.reply.round for one in self.prepared.replayed.attackable})
        done = {"round": self.rows[-1].round if self.rows else 0, "rounds": rounds[-1], "pipeline": 1, "of": 1}
        about = {
            "config": json.loads(json.dumps(asdict(self.asked), default=str)),
            "pipelines": [self.defense],
            "defenses": {self.defense: described},
            "versions": versions(),
            "progress": done | {"finished": finished},
            "command": f"fedveil report {self.out}",
        }
        write_atomically(self.out / "config.json", json.dumps(about, indent=1))

    def _card(self, server_round: int, replies: Sequence[Attackable]) -> ThreatCard:
        sent = replies[0].reply.sent_arrays()
        statistics = any(name.endswith("running_mean") for name in sent)
        return ThreatCard(
            observation=UPDATE.title,
            round=server_round,
            num_classes=self.request.num_classes,
            images=max(one.request.num_examples for one in replies),
            batch=max(one.request.batch_size for one in replies),
            local_steps=max(one.request.local_steps for one in replies),
            labels=KnownLabels.UNKNOWN,
            auxiliary_data="none",
            more={
                "defence_told": self.defense
                or "none: whether one acted on the replies before they were sent, nobody told",
                "learning_rate": self._rate_told(replies),
                "mode": "eval" if self.request.eval_mode else "train",
                "batch_norm_statistics": "sent, as recorded" if statistics else "none",
            },
        )

    def _rate_told(self, replies: Sequence[Attackable]) -> str:
        """Where the learning rates of a round come from."""
        if self.asked.request.learning_rate:
            return "as told by --learning-rate, the same in every round"
        sent = (replace(one.reply, settings={}).number(*RATES) for one in replies)
        return OF_SETTINGS if None in sent else OF_ROUND

    def _about(self, server_round: int, replies: Sequence[Attackable]) -> dict[str, Any]:
        """What the section of the report says of a round."""
        replayed = self.prepared.replayed
        return {
            "clients": {str(one.client): str(one.reply.node) for one in replies},
            "examples": [one.request.num_examples for one in replies],
            "local_steps": [one.request.local_steps for one in replies],
            "unusable": [f"node {node}: {why}" for at, node, why in replayed.unusable if at == server_round],
            "assumed": list(replayed.assumed),
            "scored": bool(self.prepared.truth),
        }

    def _baselines(self, server_round: int, replies: Sequence[Attackable], card: ThreatCard) -> None:
        by_name: dict[str, Scores] = defaultdict(lambda: defaultdict(list))
        for truth in self._truths(server_round, replies):
            for name, scores in truth.baselines(self.request.num_classes).items():
                for metric, values in scores.items():
                    by_name[name][metric] += values
        for name, scores in by_name.items():
            for columns in score_rows(scores, card):
                self._row(server_round, attack=name, **columns)

    def _scores(
        self,
        server_round: int,
        replies: Sequence[Attackable],
        attack: Attack[Any, Any],
        guesses: Sequence[Reconstruction | Labels],
        card: ThreatCard,
        seconds: float,
    ) -> None:
        """Rows of one attack on a round: scores where there is a truth, else what the attack says of itself."""
        failures = tuple(sorted({guess.failure for guess in guesses if guess.failure}))
        failed = sum(bool(guess.failure) for guess in guesses)
        card = _told(attack, card, self.prepared.auxiliary).but(attack_failures=failures)
        common: dict[str, Any] = {"attack": repr(attack), "seconds": seconds}
        found: Scores = defaultdict(list)
        lost = 0
        for truth, guess in zip(self._truths(server_round, replies), guesses, strict=False):
            scores = truth.score(guess)
            lost += len(scores.get("psnr-original", [])) if guess.failure else 0
            for metric, values in scores.items():
                found[metric] += values
        for columns in score_rows(found, card):
            per_image = columns["metric"] != "label-accuracy"
            self._row(server_round, failures=lost if per_image else failed, **columns, **common)
        if failed == len(guesses):
            why = "; ".join(failures)
            self._row(
                server_round, "attack", card=card, status="failed", n=failed, failures=failed, message=why, **common
            )
        for name in sorted({name for guess in guesses for name in guess.diagnostics}):
            values = [float(guess.diagnostics[name]) for guess in guesses if name in guess.diagnostics]
            for columns in score_rows({name: values}, card):
                self._row(server_round, **columns, **common)
        self._row(server_round, "attack-seconds", value=seconds, card=card, n=len(guesses), **common)

    def _truths(self, server_round: int, replies: Sequence[Attackable]) -> list[Truth]:
        truth = self.prepared.truth
        return [truth[server_round, one.client] for one in replies] if truth else []

    def _row(self, server_round: int, metric: str, **columns: Any) -> None:
        told = {key: columns.pop(key) for key in (PICKED_PSNR, PICKED_GAIN, PICKED_DETAIL) if key in columns}
        columns["extra"] = {**columns.get("extra", {}), **told}
        self.rows.append(
            Row(
                experiment="recorded", scenario="recording", model=self.request.model, seed=self.request.seed,
                defense=self.defense, round=server_round, metric=metric, **columns,
            )
        )  # fmt: skip

    def _keep_pictures(
        self, one: Attackable, attack: Attack[Any, Any], name: str, guess: Reconstruction | Labels
    ) -> None:
        """The guessed images, beside the original that each is scored against."""
        if not isinstance(guess, Reconstruction):
            return
        at, truth = one.reply.round, self.prepared.truth.get((one.reply.round, one.client))
        places = list(range(len(guess.images)))
        scores: list[dict[str, float | None]] = [{"psnr": None} for _ in guess.images]
        prefix = f"r{at:04d}-c{one.client}"
        if truth is not None:
            rows, columns = truth.pairs(guess)
            places = [int(columns[int((rows == i).nonzero()[0])]) if i in rows else -1 for i in places]
            told = {
                key: found[score] for found in [truth.score(guess)] for key, score in PICTURED.items() if score in found
            }
            scores = [dict(zip(told, values, strict=True)) for values in zip(*told.values(), strict=True)]
            originals = write_pictures(truth.images, f"{prefix}-original", self.out / "pictures")
            if not any(picture["file"] == file for picture in self.pictures for file in originals[:1]):
                self.pictures += [
                    self._picture(one, "original", "", i, f, {"psnr": None}) for i, f in enumerate(originals)
                ]
        files = write_pictures(guess.images, f"{prefix}-{name}", self.out / "pictures")
        self.pictures += [
            self._picture(one, "reconstruction", repr(attack), place, file, value)
            for place, file, value in zip(places, files, scores, strict=False)
        ]

    def _picture(
        self, one: Attackable, kind: str, attack: str, image: int, file: str, scores: Mapping[str, float | None]
    ) -> dict[str, Any]:
        return {
            "defense": self.defense, "round": one.reply.round, "final": False, "image": image, "target": 0,
            "client": one.client, "attack": attack, "kind": kind, "observation": UPDATE.title, "file": file,
            **scores,
        }  # fmt: skip


def _safe(attack: Attack[Any, Any], seen: ClientUpdate, seed: int, *which: int) -> Reconstruction | Labels:
    """The guess; a crash of one attack is a result, and the others go on."""
    try:
        guess: Reconstruction | Labels = guess_of(attack, seen, seed, *which)
    except Exception as error:
        return crashed(attack, seen, f"{type(error).__name__}: {error}")
    return guess


def _told(attack: Attack[Any, Any], card: ThreatCard, auxiliary: str) -> ThreatCard:
    """The card with what the attack itself adds."""
    facts = attack.card() | {"upper_bound": attack.upper_bound or None, "threat_class": attack.threat_class or None}
    if attack.learns_prior:
        facts["learns_prior"] = True
    if any(stage.needs_auxiliary for stage in stages_of(attack)):
        facts["auxiliary_data"] = auxiliary
    return card.but(**facts)
