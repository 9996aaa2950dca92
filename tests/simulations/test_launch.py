"""The app that a run is started from."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from simulations.experiment import Experiment
from simulations.launch import PACKAGES, ROOT, LocalRuntime, app_folder


def test_the_checkout_is_the_app_as_it_stands(tmp_path: Path) -> None:
    assert app_folder(tmp_path, Experiment.of().to_mapping()) == ROOT
    assert not list(tmp_path.iterdir())


def test_settings_of_another_package_are_named_in_a_copy_because_flower_refuses_others(tmp_path: Path) -> None:
    app = app_folder(tmp_path, {"seed": 4, "their-share": 0.5, "their-word": "a 'b'"})
    assert app.parent == tmp_path
    assert all((app / package / "__init__.py").is_file() for package in PACKAGES)
    shipped, copied = (tomllib.loads((one / "pyproject.toml").read_text()) for one in (ROOT, app))
    ours, theirs = (one["tool"]["flwr"]["app"].pop("config") for one in (shipped, copied))
    assert theirs == ours | {"their-share": 0.5, "their-word": "a 'b'"}
    assert copied == shipped


def test_rays_workers_are_not_started_by_uv_anew_unless_somebody_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked, got in ((None, "0"), ("1", "1")):
        monkeypatch.delenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", raising=False)
        if asked:
            monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", asked)
        with LocalRuntime(tmp_path / "log") as runtime:
            assert runtime.env["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == got
