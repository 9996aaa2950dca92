"""What ``fedveil protect`` prints at its end, in lines or as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.console.command_line import errors
from simulations.console.results import print_json
from simulations.console.terminal import Terminal
from simulations.protect.manifest import Manifest
from simulations.report.text import count

PRIVATE = (
    "Publish the copies alone: manifest.json has the SHA-256 of each original, by which a known original is found."
)
"""What the terminal says of the files beside the copies."""
NO_PRIVACY = "PSNR is no measure of privacy: `fedveil run` measures what attacks recover"
"""What the terminal says beside the PSNR of the copies."""
MOST_REASONS = 3
"""Printed reasons why a defence does little to a picture of its size; the manifest has them all."""


@dataclass(frozen=True)
class Finished:
    """Complete work.

    Attributes:
        manifest: Its record.
        path: Where that is.
        names: The sources.
        left: Ending -> number of files that are no pictures.
    """

    manifest: Manifest
    path: Path
    names: Collection[str]
    left: Mapping[str, int]

    def print(self, console: Terminal) -> None:
        """Print what was processed and how far copies are from their pictures, and what was not processed."""
        names, done, failed = self.names, self.manifest.done, self.manifest.failed
        counted = [f"{len(names) - len(failed)} of {len(names)} pictures processed by {self.manifest.order.pipeline}"]
        counted += [f"{len(failed)} unreadable"] if failed else []
        counted += [f"{count(sum(self.left.values()), 'file')} skipped"] if self.left else []
        console.say(", ".join(counted))
        for line in self.manifest.windows:
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
        if found := self.manifest.psnrs:
            scale = f"{min(found):.1f} to {max(found):.1f} dB, mean {self.manifest.psnr:.1f} (100: unchanged)"
            console.say(f"PSNR of the copies to the originals: {scale}. {NO_PRIVACY}.")
        console.say(f"manifest: {self.path}")
        console.say(PRIVATE)

    def print_json(self) -> None:
        """Print the same for programs, as `fedveil protect --help` describes it."""
        order = self.manifest.order
        failed = [{"source": one.source, "error": one.error} for one in self.manifest.failed]
        about: dict[str, Any] = {"directory": str(order.out), "manifest": str(self.path), "defense": order.pipeline}
        about |= {"protected": len(self.names) - len(failed), "unreadable": failed, "skipped": self.left}
        print_json(about | {"psnr": self.manifest.psnr})
