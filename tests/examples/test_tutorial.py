"""docs/tutorial.md, followed to its end: its code is that of the examples, its commands run, with shorter attacks. Minutes."""

import ast
import json
import subprocess
from pathlib import Path

import pytest

from simulations.runtime.launch import LocalRuntime
from tests.common.documents import blocks
from tests.examples.copies import EXAMPLES, with_short_attacks
from tests.lines import read_lines

PAGE = "docs/tutorial.md"
FILE = "# local_dp_pytorch/for_fedveil.py\n"
"""How the block begins that is a file of its own."""
SHORTER = {"iterations=200": "iterations=5", "-s rounds=6": "-s rounds=6 -s probe-targets=1 -s adaptive=false"}
"""What the study is run with here: as long as it must learn, with attacks that need not succeed."""
ROUNDS = "num-server-rounds=3"
"""Of the audits beside the app: the page reads the first round."""
CLIPPED = "Clip(max_norm=1.0, per='update') | GaussianNoise(std={}, per='update')"


def test_its_lines_are_those_of_the_examples() -> None:
    code = [one for one in blocks(PAGE, "python") if not one.startswith(FILE)]
    assert len(code) == 2
    for app in ("quickstart_pytorch/pytorchexample", "local_dp_pytorch/dpexample"):
        for block, file in zip(code, ("client_app.py", "server_app.py"), strict=True):
            written = {ast.dump(one) for one in ast.walk(ast.parse((EXAMPLES / app / file).read_text()))}
            for statement in ast.parse(block).body:
                assert ast.dump(statement) in written, ast.unparse(statement)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, in which everything was done that the page says, with attacks of a few steps."""
    pytest.importorskip("mlxtend", reason="mlxtend is not installed: uv sync --group dev")
    folder = tmp_path_factory.mktemp("tutorial")
    for app in ("quickstart_pytorch", "local_dp_pytorch"):
        with_short_attacks(app, folder)
    (own,) = [one for one in blocks(PAGE, "python") if one.startswith(FILE)]
    (folder / FILE.removeprefix("# ").strip()).write_text(own.removeprefix(FILE))
    with LocalRuntime(folder / "log.txt") as runtime:
        script = "\n".join(["set -euo pipefail", *blocks(PAGE, "bash")])
        assert script.count(ROUNDS) == 2
        script = script.replace(ROUNDS, ROUNDS.replace("3", "1"))
        for written, shorter in SHORTER.items():
            assert script.count(written) == 1
            script = script.replace(written, shorter)
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=runtime.env, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_the_audits_beside_the_app_are_those_of_the_page(followed: Path) -> None:
    """16 images each; what the mod's run says by itself is that there is nothing to hold it against."""
    assert (followed / "beside.html").is_file()
    for name in ("without", "with"):
        rows = read_lines(followed / name / "rows.jsonl")
        psnr = [row for row in rows if row["attack"].startswith("InvertingGradients(") and row["metric"] == "psnr"]
        assert {row["n"] for row in psnr} == {16}
    assert psnr[0]["defense"].startswith("LocalDpMod(clipping_norm=1.0")
    assert psnr[0]["status"] == "not-validated"


@pytest.mark.slow
def test_the_federation_says_what_the_noise_costs(followed: Path) -> None:
    """Under noise of norm 120 on updates of norm 1 nothing is learned; digits without it are."""
    folder = followed / "study"
    assert (folder / "report.html").is_file()
    assert json.loads((folder / "config.json").read_text())["progress"]["finished"] is True
    rows = read_lines(folder / "rows.jsonl")
    last = {row["defense"]: row["value"] for row in rows if row["metric"] == "test-accuracy"}
    assert last.keys() == {"", CLIPPED.format(0.4845), CLIPPED.format(0.002)}
    assert last[CLIPPED.format(0.4845)] < 0.3
    assert last[""] > 0.6
