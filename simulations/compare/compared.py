"""Runs side by side from Python: the data, the table and the page of ``fedveil compare``."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.compare.groups import Group, grouped
from simulations.compare.page import every_defence, require_page, sides, write_comparison
from simulations.report.page.templates import render
from simulations.settings.errors import ConfigError


@dataclass(frozen=True)
class Compared:
    """Groups of runs that differ in their seed alone, and the page where one was written. Jupyter shows the page's table."""

    groups: tuple[Group, ...]
    page: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """What ``fedveil compare --json`` prints."""
        page = str(self.page.resolve()) if self.page else None
        return {"page": page, "groups": [group.to_json() for group in self.groups]}

    def table(self) -> Any:
        """A ``pandas.DataFrame``: a line for each group, defence and message, columns as the keys of ``to_json``.

        Values within a value have columns such as ``accuracy.mean``. A defence of which nothing was attacked has a line, too.
        """
        try:
            import pandas  # type: ignore[import-untyped]
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError('the package pandas is not installed: pip install "fedveil[notebook]"') from error
        flat = pandas.json_normalize([
            {"name": group.name, "seeds": list(group.seeds), "study": of["study"], "defense": of["defense"]}
            | {**message, **of, "warnings": [*of["warnings"], *message.get("warnings", ())]}
            for group in self.groups for of in group.run.to_json() for message in of["messages"] or [{}]
        ])  # fmt: skip
        # A value that some lines lack is a column of its own, too.
        lacking = [name for name in flat if any(other.startswith(f"{name}.") for other in flat)]
        return flat.drop(columns=["messages", *lacking], errors="ignore").convert_dtypes()

    def _repr_html_(self) -> str:
        reports = [folder / "report.html" for group in self.groups for folder in group.folders]
        known = {"table_of_all": every_defence(sides(self.groups))}
        return render("notebook.html", known | {"groups": self.groups, "files": [self.page] if self.page else reports})


def compare_runs(*runs: Any, page: str | Path | None = None) -> Compared:
    """Put folders of runs, or results of ``audit``, side by side; those that differ in their seed alone are put together.

    ``page`` names a file that ends in .html for the page of ``fedveil compare``; without it none is written. Damaged rows are
    warnings. ``ConfigError``: a folder holds no run, two runs are the same, or the page would replace another file.
    """
    try:
        folders, file = [Path(getattr(run, "directory", run)) for run in runs], None if page is None else Path(page)
    except TypeError as error:
        raise ConfigError(f"compare_runs: {error}; allowed: folders of runs, and results of audit") from error
    compared = Compared(grouped(folders), file)
    if file is not None:
        require_page(file, "page")
        write_comparison(compared.groups, file)
    for damage in (text for group in compared.groups for text in group.damaged):
        warnings.warn(damage, stacklevel=2)
    return compared
