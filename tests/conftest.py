"""One torch thread for all tests: many small operations, which threads only make wait for each other."""

import contextlib
import os
import time
from collections.abc import Generator, Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Read when Ray is imported: else, under `uv run`, it starts each of its workers by uv, in an environment of its own.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# Ray's workers are started at niceness 15, and starve beside five workers of pytest.
os.environ.setdefault("RAY_worker_niceness", "0")

from clients.process.ray_cluster import patient
from simulations.runtime.user_cache import forget_bytecode, keep_bytecode

# Of all that tests start: some hundred processes, each of which would compile torch anew where bytecode is not written.
keep_bytecode()
# Tests share the machine with each other, and with whatever else it does: Ray's parts wait longer for each other.
os.environ.update(patient(os.environ))

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import ray  # noqa: E402, F401 -- it changes sys.path and the environment when it is first imported, by whichever test
import torch  # noqa: E402

from clients.flower_private import act_as_task  # noqa: E402
from tests.isolation import leaving_nothing, salt_seeds  # noqa: E402
from tests.skips import NOT_BEGUN, allowed  # noqa: E402

if salt := int(os.environ.get("TEST_SEED_SALT", "0")):
    salt_seeds(salt)

# Else whichever test begins a run first lets the others of its process make messages.
act_as_task()

# Timings decide no test: on a busy machine a draw may take any time.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
torch.set_num_threads(1)

with contextlib.suppress(ImportError):
    # Where it counts lines (.ci/nightly), it would take its probes out of what has run and, to find that, read the locals of
    # running frames: these then keep tensors that were let go, and a peak of memory is another. In xdist's workers no option
    # forbids it.
    from slipcover import Slipcover

    Slipcover.deinstrument_seen = lambda self: None


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """A run in this process gives its server all cores; with a test worker on each, their threads would wait for each other.

    Of the whole session: runs that a module's tests share are made before what is set up for a single test.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_num_threads", lambda count: None)
        yield
    assert torch.get_num_threads() == 1


@pytest.fixture(autouse=True, scope="session")
def forgets_bytecode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a bytecode folder got of copies of the app, which lie where no later session looks."""
    yield
    forget_bytecode(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True, scope="module")
def module_leaves_nothing() -> Iterator[None]:
    """Also what the tests of a file share is undone when the file ends."""
    with leaving_nothing():
        yield


@pytest.fixture(autouse=True)
def test_leaves_nothing(module_leaves_nothing: None) -> Iterator[None]:
    """Logging, signals, paths, environment, threads and torch's switches are after each test as they were before it."""
    with leaving_nothing():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--begin-within", type=float, metavar="SECONDS", help="Begin no test later; skipped tests say so.")


def pytest_runtest_setup(item: pytest.Item, _began: list[float] = []) -> None:  # noqa: B006 (of the process)
    """For ``--begin-within``, from the first test on."""
    within = item.config.getoption("--begin-within")
    _began.append(time.monotonic())
    if within is not None and _began[-1] - _began[0] > within:
        pytest.skip(f"{NOT_BEGUN} {within:g} s")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why it was skipped; of a test that was expected to fail, that it was."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected to fail"
    return str(text).removeprefix("Skipped: ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip for a reason that is not on the list fails."""
    report = yield
    if report.skipped and not allowed(_reason(report)):
        report.outcome, report.longrepr = "failed", f"a skip that tests/skips.py does not list: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file."""
    report = yield
    if report.skipped and not allowed(_reason(report)):
        report.outcome, report.longrepr = "failed", f"a skip that tests/skips.py does not list: {report.longrepr}"
    return report


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests are long as well, and begin: what one worker waits for at the end is then a quick file."""
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker("long")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
