"""The work of ``fedveil search``: find policies, show progress, and write a result that clients can use, with its page."""

from __future__ import annotations

import base64
import io
import shlex
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import typer

from clients.data.images import to_float
from defenses.images.ats import ATS, Policy, parse_policies
from defenses.images.transforms import LIBRARY
from simulations.console.command_line import errors, fail, read_toml, setting_of
from simulations.console.progress import Display
from simulations.console.results import print_json, table, terminal_for
from simulations.console.terminal import Terminal
from simulations.report import write_page
from simulations.report.page.page import render
from simulations.run_folder.drawn import drawn
from simulations.search.algorithm import PolicySearch
from simulations.search.scorer import DegenerateModelError, positions, transformed
from simulations.search.settings import PAPER, RELEASED, Search, keys
from simulations.search.space import text_of
from simulations.settings.errors import ConfigError

console = Terminal(highlight=False)

KEYS = ("policies", "wanted", "scored", "passed", "privacy_score", "accuracy_threshold", "scores")
"""Of a result: what ``--json`` prints."""
SHARED = ("dataset", "data-dir", "image-size", "model", "width", "norm")
"""Settings that a search and a run that attacks its result have in common."""
NUMBERS = ("privacy", "other_privacy", "accuracy")
"""Of a chosen policy, in the order of the tables."""
MOST_LISTED, EXAMPLES = 20, 4
"""Policies of the page's table beside the chosen ones, and pictures of each."""
EXIT_TOO_FEW = 3
"""Fewer policies passed than were asked for."""


def work(
    config: Path | None,
    setting: list[str],
    out: Path | None,
    resume: Path | None,
    *,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Run ``fedveil search`` with its options as they were written."""
    shown = terminal_for(console, quiet=as_json)
    try:
        search = _search(config, setting, out, resume, dry_run=dry_run)
    except ConfigError as error:
        fail(str(error))
    if isinstance(search, Search):
        shown.say(f"data and model: {search.dataset}, {search.model}")
        shown.say(
            f"to score:       {search.candidates} policies on {search.images} images, of which {search.policies} are chosen"
        )
        return
    started = time.monotonic()
    try:
        with Display(shown) as display:
            search.show = display.show
            result = search.run()
        page = write_search_page(search, result)
    except DegenerateModelError as error:  # to go on would train the same again
        fail(f"{error}\nstart a new search with other settings")
    except ConfigError as error:
        fail(f"{error}\nwhat was scored is kept; continue with: fedveil search --resume {search.path}")
    except KeyboardInterrupt:
        errors.say(f"\nstopped; continue with: fedveil search --resume {search.path}")
        raise typer.Exit(130) from None
    finally:
        search.close()
    shown.say(f"finished in {time.monotonic() - started:.0f} s")
    _conclude(shown, search, result, page, as_json=as_json)


def _search(
    config: Path | None, settings: list[str], out: Path | None, resume: Path | None, *, dry_run: bool
) -> PolicySearch | Search:
    """A new search, or one that goes on, in perhaps another number of processes; in a dry run the checked settings alone."""
    chosen = dict(setting_of(text, keys()) for text in settings)
    if resume is None:
        path = (out or Path("runs") / datetime.now().strftime("search-%Y%m%d-%H%M%S")).resolve()
        search = Search.from_mapping((read_toml(config) if config else {}) | chosen)
        if not dry_run:
            return PolicySearch.create(path, search)
        PolicySearch.pictures(path, search)
        return search
    if dry_run:
        raise ConfigError("--dry-run is for a new search, and a begun one was checked: leave out --resume")
    if config or out or chosen.keys() - {"workers"}:
        raise ConfigError(
            "--resume takes the settings of the search itself, as its scores would change with others: leave out CONFIG, --out and "
            "every -s but workers"
        )
    return PolicySearch.resume(resume.resolve(), chosen)


def _conclude(console: Terminal, search: PolicySearch, result: Mapping[str, Any], page: Path, *, as_json: bool) -> None:
    """Prints what was found, and what to do with it; ends the command where it is less than was asked for."""
    found, wanted = len(result["scores"]), result["wanted"]
    if found:
        rows = [[one["policy"], *(f"{one[key]:.4f}" for key in NUMBERS)] for one in result["scores"]]
        console.print(table(["policy"], _heads(search.search), rows))
    of = f"of {result['scored']} scored candidates, of which {result['passed']} passed"
    console.say(f"{found} {'policy' if found == 1 else 'policies'} {of}: {result['policies'] or 'none'}")
    console.say(f"policies: {search.result_path}")
    if found:
        console.say(f'defence:  ATS(policies="{search.result_path}")')
        console.say(f"attack:   {_command(search.search, result)}")
    console.say(f"page:     {page}")
    if as_json:
        about = {key: result[key] for key in KEYS}
        print_json({"directory": str(search.path), "page": str(page), "file": str(search.result_path), **about})
    if found < wanted:
        least = f"lower accuracy-threshold (it is {result['accuracy_threshold']:.4f}), or score more candidates"
        errors.say(f"{found} of {wanted} policies passed: {least}")
        raise typer.Exit(EXIT_TOO_FEW)


def _heads(search: Search) -> list[str]:
    """Names of ``NUMBERS``; the privacy score that chooses stands first."""
    own, other = (RELEASED, PAPER) if search.privacy_score == RELEASED else (PAPER, RELEASED)
    return [f"S_pri, {own} (chooses)", f"S_pri, {other}", "S_acc"]


def _command(search: Search, result: Mapping[str, Any]) -> str:
    """The run that attacks the result."""
    known = search.to_mapping()
    settings = {key: known[key] for key in SHARED if known[key]}
    settings |= {"seed": search.seed, "probe-mode": "eval", "update-attacks": ""}  # as the paper attacks
    settings["defenses"] = repr(ATS(policies=result["policies"], channels=result["channels"]))
    return shlex.join(["fedveil", "run", *(word for key in settings for word in ("-s", f"{key}={settings[key]}"))])


def write_search_page(search: PolicySearch, result: Mapping[str, Any]) -> Path:
    """Write ``search.html``: the chosen and the most private policies with pictures and scores."""
    data, passed = search.search.plan().load_data(), search.passed()
    _, scored = positions(search.search, data)
    images = to_float(data.train.images[scored])
    chosen = list(parse_policies(result["policies"])) if result["policies"] else []
    others = [policy for policy in passed if policy not in chosen][:MOST_LISTED]

    def pictures(policy: Policy) -> str:
        """A PNG as a data URI: the first images of S_pri, side by side."""
        file = io.BytesIO()
        under = transformed(search.search, images, policy, "privacy", 0)[:EXAMPLES]
        drawn(torch.cat(list(under), 2)).save(file, format="PNG")
        return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")

    def words(policy: Policy) -> str:
        steps = (f"{LIBRARY[index].name} {LIBRARY[index].level}" for index in policy)
        return ", then ".join(steps) or "leaves images as they are"

    context = {
        "title": f"Policy search on {search.search.dataset}",
        "result": result,
        "search": search.search,
        "heads": [f"#{head}" for head in _heads(search.search)],
        "command": _command(search.search, result) if chosen else "",
        "rows": [
            (text_of([policy]) or "none", policy in chosen, words(policy), pictures(policy), search.scored[policy])
            for policy in [(), *chosen, *others]
        ],
    }
    write_page(search.path / "search.html", render(BODY, context))
    return search.path / "search.html"


BODY = """
<p class="kicker">fedveil search</p>
<h1>{{ result.policies or "No policy passed" }}</h1>
<p class="facts">ATS on {{ search.dataset }} with {{ search.model }}, seed {{ search.seed }}: {{ result.scored }} policies scored,
{{ result.passed }} of them at or above the threshold {{ result.accuracy_threshold | fixed(4) }} of S_acc. A low S_pri means that
gradients reveal little on the path to the image; it is a proxy, measured on {{ search.images }} images with a model trained on
{{ "%g"|format(100 * search.semi_share) }} % of the training images.
{% if command %}To measure what attacks recover: <code>{{ command }}</code>{% endif %}</p>
<section id="policies"><header><h2>Policies</h2><p>No policy, the chosen ones, and the most private of the others that pass.
Those that share a transform cannot be in one hybrid.</p></header>
{{ table('Policies') }}
{{ head(['Policy', 'What it does', 'Pictures'] + heads) }}
<tbody>
{% for name, chosen, what, pictures, scores in rows %}
<tr><td>{{ name }}{{ " (chosen)" if chosen }}</td><td>{{ what }}</td>
<td><img src="{{ pictures }}" alt="images under {{ name }}" height="64"></td>
{{ number(scores.privacy | fixed(4)) }}{{ number(scores.other_privacy | fixed(4)) }}{{ number(scores.accuracy | fixed(4)) }}</tr>
{% endfor %}
</tbody></table></div></section>
<section id="settings"><header><h2>Settings</h2></header>{{ pairs(search.to_mapping(), 'Settings') }}</section>
"""
