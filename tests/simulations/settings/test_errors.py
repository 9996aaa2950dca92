"""Errors about unknown names: what they suggest, and which command lists all."""

import pytest

from simulations.settings.common import read
from simulations.settings.errors import NEAREST, ConfigError, require_known
from simulations.settings.scenarios import SETTINGS


def test_a_setting_is_suggested_only_where_it_is_similar() -> None:
    for name, suggested in (
        ("lr", ", did you mean 'learning-rate'?"), ("Rounds", ", did you mean 'rounds'?"), ("zzzz", ""),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as error:
            read({name: 1}, SETTINGS)
        assert str(error.value).startswith(f"unknown setting {name!r}{suggested}; ")
        assert str(error.value).endswith("`fedveil list settings` shows all")


def test_few_names_are_all_shown_and_of_many_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^unknown thing 'c'; known: aa, bb or another$"):
        require_known("thing", "c", ["bb", "aa"], also="or another", listed="settings")
    for count, shown in ((2 * NEAREST, "known: "), (2 * NEAREST + 1, "`fedveil list settings` shows all")):
        with pytest.raises(ConfigError, match=shown):
            require_known("thing", "zz", [f"name{at}" for at in range(count)], listed="settings")
