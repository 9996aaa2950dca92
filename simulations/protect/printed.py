"""What ``fedveil protect`` prints at its end, in lines or as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulations.console.command_line import errors
from simulations.console.results import print_json, table
from simulations.console.terminal import Terminal
from simulations.protect.identified import Identified
from simulations.protect.manifest import UNTESTED, Manifest
from simulations.protect.recognised import Recognised
from simulations.report.text import count

if TYPE_CHECKING:
    from simulations.protect.preview import Preview

PRIVATE = "Publish the copies alone: manifest.json has the SHA-256 of each original, by which a known original is found"
"""What the terminal says of the files beside the copies; a preview shows originals as well."""
MOST_REASONS = 3
"""Printed reasons why a defence does little to a picture of its size; the manifest has them all."""


@dataclass(frozen=True)
class Finished:
    """Complete work.

    Attributes:
        manifest: Its record.
        path: Where that is.
        names: The sources.
        seen: Which copies still show their pictures.
        warning: Where most do, else "".
        answers: Of a pretrained network.
        made: The preview, where one was wanted.
        left: Ending -> number of files that are no pictures.
    """

    manifest: Manifest
    path: Path
    names: Collection[str]
    seen: Identified
    warning: str
    answers: Recognised
    made: Preview | None
    left: Mapping[str, int]

    def print(self, console: Terminal) -> None:
        """Print what was processed, what copies still show, what was not processed, and what attacks recovered."""
        self._print_processed(console)
        self._print_attacked(console)
        if self.warning:
            errors.say(f"warning: {self.warning}")
        elif self.seen.finding:
            console.say(self.seen.finding)
        if self.answers.finding:
            (errors if self.answers.missing else console).say(self.answers.finding)
        console.say(f"manifest: {self.path}")
        if self.made:
            console.say(f"preview: {self.made.page or 'none, as there is no copy to show'}")
        shows = ", and the preview shows originals." if self.made and self.made.page else "."
        console.say(f"{PRIVATE}{shows}")

    def _print_processed(self, console: Terminal) -> None:
        names, done, failed = self.names, self.manifest.done, self.manifest.failed
        counted = [f"{len(names) - len(failed)} of {len(names)} pictures processed by {self.manifest.order.pipeline}"]
        counted += [f"{len(failed)} unreadable"] if failed else []
        counted += [f"{count(sum(self.left.values()), 'file')} skipped"] if self.left else []
        console.say("; ".join([", ".join(counted), *([self.seen.headline] if self.seen.compared else [])]))
        for line in filter(None, (self.manifest.window_rule, *self.manifest.windows)):
            console.say(line)
        for why, times in Counter(why for name in names for why in done[name].idle).most_common(MOST_REASONS):
            errors.say(f"{times} of them: {why}")
        if failed:
            errors.print(f"[red]{len(failed)} could not be protected:[/red]")
        for one in failed:
            errors.say(f"  {one.source}: {one.error}")
        if self.left:
            listed = ", ".join(f"{times} {ending or 'without ending'}" for ending, times in sorted(self.left.items()))
            errors.say(f"files left alone, as Pillow reads no pictures of their kind: {listed}")

    def _print_attacked(self, console: Terminal) -> None:
        """Which attacks ran and what they recovered, or that none ran."""
        made = self.made
        if made is None:
            console.say(UNTESTED)
            return
        if made.ran:
            rows = ([name, f"{recovered} of {len(made.shown)}"] for name, recovered in made.recovered.items())
            at = f" of copies scaled to {made.scaled} x {made.scaled}" if made.scaled else ""
            console.print(table(("attack", f"recovered{at}"), (), rows))
        if made.page:
            (console if made.ran else errors).say(made.first if made.ran else f"{made.first} {made.summary}".strip())
        for why in made.missing:
            errors.say(f"did not run: {why}")

    def print_json(self) -> None:
        """Print the same for programs, as `fedveil protect --help` describes it."""
        order, made = self.manifest.order, self.made
        failed = [{"source": one.source, "error": one.error} for one in self.manifest.failed]
        about: dict[str, Any] = {"directory": str(order.out), "manifest": str(self.path), "defense": order.pipeline}
        about |= {"identified": len(self.seen.names), "of": len(self.seen.compared), "warning": self.warning}
        about |= {"recognised": self.answers.numbers}
        about |= {
            "protected": len(self.names) - len(failed),
            "unreadable": failed,
            "skipped": self.left,
            "preview": None,
        }
        if made:
            page = str(made.page) if made.page else None
            tried = {"attacks": made.recovered, "of": len(made.shown), "did_not_run": made.missing}
            about["preview"] = {"page": page, **tried}
        print_json(about)
