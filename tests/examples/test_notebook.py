"""The notebook of examples/, executed as its reader does: cell after cell, in a kernel of its own."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.common.documents import ROOT
from tests.isolation import put_back, state

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: uv sync --group dev")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: uv sync --group dev")
for needed in ("ipykernel", "pandas"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: uv sync --group dev")

NOTEBOOK = ROOT / "examples" / "first_audit.ipynb"


def outputs(book: Any, kind: str) -> list[tuple[int, str]]:
    """(number of the cell, data) of every output that has data of a kind, such as "image/png"."""
    return [
        (at, one["data"][kind])
        for at, cell in enumerate(book.cells)
        for one in cell.get("outputs", ())
        if kind in one.get("data", {})
    ]


def at(cell: Any, event: str) -> datetime:
    return datetime.fromisoformat(cell.metadata["execution"][event])


def test_the_committed_notebook_has_no_outputs() -> None:
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in code] == [[]] * len(code)
    assert {cell.execution_count for cell in code} == {None}


@pytest.mark.slow
def test_every_cell_runs_and_shows_tables_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):
        (tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / variable))
    book = nbformat.read(NOTEBOOK, as_version=4)
    before = state()
    nbclient.NotebookClient(book, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    put_back(before)  # nbclient sets a handler of signals
    tables = [html.replace("<wbr>", "") for _, html in outputs(book, "text/html")]
    assert sum('<table border="1" class="dataframe">' in html for html in tables) >= 1
    shown = [html for html in tables if 'class="fedveil"' in html]
    assert len(shown) >= 3, "the audit, that of the own defence, and the comparison"
    assert all(name in shown[-1] for name in ("Posterise", "GaussianNoise", "own-model"))
    pictures = outputs(book, "image/png")
    assert len({data for _, data in pictures}) >= 3
    begin = next(cell for cell in book.cells if cell.cell_type == "code")
    last = [cell for cell in book.cells if cell.cell_type == "code"][-1]
    first = book.cells[pictures[0][0]]
    took = {
        name: (at(cell, "shell.execute_reply") - at(begin, "iopub.status.busy")).total_seconds()
        for name, cell in (("first picture", first), ("whole notebook", last))
    }
    with capsys.disabled():
        print(f"\n{NOTEBOOK.name}: " + ", ".join(f"{name} after {seconds:.0f} s" for name, seconds in took.items()))
