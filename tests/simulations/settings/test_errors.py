"""Errors about unknown names: what they suggest, and which command lists all."""

from __future__ import annotations

import pytest

from simulations.settings.errors import NEAREST, ConfigError, nearest, require_known
from simulations.settings.plain import SETTINGS, fields_of, refuse_plain


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lr", "unknown setting 'lr', did you mean 'learning-rate'?; "),
        ("Rounds", "unknown setting 'Rounds', did you mean 'rounds'?; "),
        ("zzzz", "unknown setting 'zzzz'; `fedveil list settings` shows all"),
    ],
)
def test_a_setting_is_suggested_only_where_it_is_similar(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        refuse_plain({name: 1})
    assert str(error.value).startswith(message)
    assert str(error.value).endswith("`fedveil list settings` shows all")


def test_few_names_are_all_shown_and_of_many_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^unknown thing 'c'; known: aa, bb or another$"):
        require_known("thing", "c", ["bb", "aa"], also="or another", listed="settings")
    near = nearest("batch", fields_of(SETTINGS))
    assert 1 < len(near) <= NEAREST
    assert "batch-size" in near
    require_known("thing", "aa", ["bb", "aa"])
