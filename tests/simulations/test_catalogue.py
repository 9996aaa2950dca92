from typer.testing import CliRunner

from simulations.catalogue import SECTIONS
from simulations.cli import app


def test_all_sections_are_listed_or_the_one_that_is_named() -> None:
    every, one, none = (CliRunner().invoke(app, ["list", *name]) for name in ([], ["attacks"], ["attack-s"]))
    assert [every.exit_code, one.exit_code, none.exit_code] == [0, 0, 2]
    assert all(text in every.output for text in (*SECTIONS, "VisualMixer", "default of split: 'vit'"))
    assert ("DLG" in one.output, "VisualMixer(" in one.output) == (True, False)
    assert f"known: {', '.join(SECTIONS)}" in " ".join(none.output.split())
