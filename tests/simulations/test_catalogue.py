from simulations.catalogue import SECTIONS
from tests.simulations.commands import fedveil, refused


def test_all_sections_are_listed_or_the_one_that_is_named() -> None:
    (code, every), (_, one) = fedveil("list"), fedveil("list", "attacks")
    assert code == 0
    assert all(text in every for text in (*SECTIONS, "VisualMixer", "default of split: 'vit'"))
    assert ("DLG" in one, "VisualMixer(" in one) == (True, False)
    assert f"known: {', '.join(SECTIONS)}" in refused("list", "attack-s")
