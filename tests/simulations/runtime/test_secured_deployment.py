"""The app on a SuperLink with two SuperNodes, by docs/deployment.md ("TLS and node authentication"), and who is refused."""

import http.client
import re
import shlex
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from simulations.runtime.launch import ROOT, free_port
from simulations.runtime.progress import read_progress
from tests.lines import read_lines
from tests.simulations.runtime import runtimes

SECTION = (ROOT / "docs" / "deployment.md").read_text().partition("\n## TLS and node authentication\n")[2]
PLACE = "/srv/fedveil"
SERVER, FIRST, SECOND = "18000", "18094", "18095"
"""Ports of the page."""
TINY = {
    **runtimes.SMALL, "rounds": 1, "defenses": "", "num-clients": 2, "share-images": False, "train-limit": 100, "test-limit": 20,
    "probe-attacks": "InvertingGradients(iterations=5)", "update-attacks": "",
}  # fmt: skip


def lines_of(language: str) -> list[str]:
    """The page's commands or settings, a line each."""
    text = "".join(re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL))
    return text.replace("\\\n", "").splitlines()


def elsewhere(text: str, other: Mapping[str, str]) -> str:
    """A text of the page with other ports and places."""
    return re.sub("|".join(map(re.escape, other)), lambda found: other[found[0]], text)


def beginning(other: Mapping[str, str], *words: str) -> list[list[str]]:
    """The page's commands that begin with these words, split, with other ports and places, which may hold spaces."""
    found = [split for line in lines_of("bash") if (split := shlex.split(line))[: len(words)] == list(words)]
    return [[elsewhere(word, other) for word in split] for split in found]


@contextmanager
def proxy_for_nodes(folder: Path, link: int) -> Iterator[int]:
    """Passes what begins with /v1/fleet/ to the SuperLink and refuses the rest, as the page's nginx does; yields its port."""
    trust = ssl.create_default_context(cafile=str(folder / "ca.pem"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if not self.path.startswith("/v1/fleet/") or ".." in self.path:
                return self.send_error(403)
            behind = http.client.HTTPSConnection("127.0.0.1", link, context=trust, timeout=runtimes.PATIENCE)
            behind.request("POST", self.path, body, dict(self.headers))
            response = behind.getresponse()
            answer = response.read()
            behind.close()
            self.send_response(response.status)
            self.send_header("content-type", response.getheader("content-type", ""))
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return None

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.load_cert_chain(folder / "server.pem", folder / "server.key")
    server.socket = identity.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def told(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Exit code of a command, and all that it said, on one line."""
    done = subprocess.run(
        command, env=env, cwd=env["FLWR_HOME"], capture_output=True, text=True, timeout=runtimes.PATIENCE, check=False
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def replaced(command: Sequence[str], **other: str | None) -> list[str]:
    """A command with other values behind some options, or without these."""
    found = list(command)
    for name, value in other.items():
        at = found.index(f"--{name.replace('_', '-')}")
        found[at : at + 2] = [] if value is None else [found[at], value]
    return found


pytestmark = pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl and ssh-keygen"
)


def make_certificates(folder: Path, *more: str) -> None:
    """Runs the page's commands for certificates and keys."""
    lines = [elsewhere(line, {PLACE: shlex.quote(str(folder))}) for line in lines_of("bash")]
    making = [line for line in lines if line.split(" ")[0] in {"cd", "openssl", "printf", "ssh-keygen"}]
    done = subprocess.run(["bash", "-euc", "\n".join([*making, *more])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_audit_runs_for_registered_nodes_and_nobody_else_gets_in(tmp_path: Path) -> None:
    folder, link = tmp_path / "srv", free_port()
    folder.mkdir()
    make_certificates(folder, 'ssh-keygen -q -t ecdsa -b 384 -N "" -f stranger')
    ports = {PLACE: str(folder), SERVER: str(link), FIRST: str(free_port()), SECOND: str(free_port())}
    home = tmp_path / "cli"
    home.mkdir()
    env = {**runtimes.flower_env(), "FLWR_HOME": str(home)}
    with runtimes.running(beginning(ports, "flower-superlink"), tmp_path, env), proxy_for_nodes(folder, link) as proxy:
        secured = elsewhere("\n".join(lines_of("toml")), ports)
        others = "\n".join(
            secured.replace("superlink.secured", f"superlink.{name}").replace(old, new)
            for name, old, new in (
                ("proxied", f":{link}", f":{proxy}"),
                ("without-ca", f'root-certificates = "{folder / "ca.pem"}"', ""),
            )
        )
        (home / "config.toml").write_text(f"{secured}\n{others}\n")
        runtimes.wait_until(lambda: runtimes.listens(link), "the SuperLink did not start")
        for command in beginning(ports, "flwr", "supernode", "register"):
            code, said = told(command, env)
            assert code == 0, said
        first, second = beginning(ports, "flower-supernode")
        refused = {
            "Failed to activate SuperNode": replaced(first, auth_supernode_private_key=str(folder / "stranger")),
            "All SuperNodes must be registered": replaced(first, auth_supernode_private_key=None),
            "CERTIFICATE_VERIFY_FAILED": replaced(first, root_certificates=None),
        }
        once = ["--max-retries", "0"]
        intruders = [[*replaced(command, port=str(free_port())), *once] for command in refused.values()]
        nodes = [first, replaced(second, superlink=f"127.0.0.1:{proxy}")]
        with runtimes.running([*nodes, *intruders], tmp_path, env) as started:
            audit_completes(beginning(ports, "flwr", "run")[0], env, tmp_path / "run")
            for name, reason in (("proxied", "403"), ("without-ca", "Connection to the SuperLink is unavailable")):
                code, said = told(["flwr", "supernode", "register", str(folder / "stranger.pub"), name], env)
                assert code != 0, name
                assert reason in said, said
            assert all(process.poll() is None for process in started[:2])
            for process, reason, at in zip(started[2:], refused, range(3, 6), strict=True):
                assert process.wait(runtimes.PATIENCE) != 0
                assert reason.lower() in " ".join((tmp_path / f"home{at}.log").read_text().split()).lower()
            # SuperLink and both nodes, with all that they started.
            assert {
                ip for process in psutil.Process().children(recursive=True) for ip in runtimes.listening(process)
            } == {"127.0.0.1"}
    # Each node made its own file, at the first of its processes.
    files = sorted((folder / "secrets").iterdir())
    assert [file.name for file in files] == ["partition-0.secret", "partition-1.secret"]
    assert len({file.read_text() for file in files}) == 2


def audit_completes(command: Sequence[str], env: Mapping[str, str], out: Path) -> None:
    """The page's run, of a tiny experiment, by people who have the certificate and no key."""
    out.mkdir()
    settings = runtimes.overrides({**TINY, "output-dir": str(out)})
    code, said = told([word if word != "." else str(ROOT) for word in replaced(command, run_config=settings)], env)
    assert code == 0, said
    assert read_progress(out).get("finished"), said
    rows = read_lines(out / "rows.jsonl")
    audited = [row for row in rows if row["attack"].startswith("Inverting") and row["metric"] == "ssim"]
    assert [(row["reference"], row["n"]) for row in audited] == [("original", 2), ("transformed", 2)]
    assert not [row for row in rows if row["status"] in ("failed", "refused")]
    # Nothing but the workers of a simulation draws from the seed.
    assert {row["card"]["randomness"] for row in rows if row["attack"]} == {"each node's own secret"}
    assert not read_lines(out / "pictures" / "index.jsonl"), "pictures left clients that do not share them"


def test_the_pages_certificates_are_accepted_and_its_keys_are_what_flower_reads(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    from tests.flower_private import try_load_public_key

    make_certificates(tmp_path)
    for secret in ("ca.key", "server.key", "node-0"):
        assert (tmp_path / secret).stat().st_mode & 0o077 == 0
    for name in ("node-0", "node-1"):
        key = load_ssh_private_key((tmp_path / name).read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        assert try_load_public_key(tmp_path / f"{name}.pub")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
    assert all(believed(tmp_path, trusting, name) for name in ("127.0.0.1", "localhost"))
    assert not believed(tmp_path, trusting, "127.0.0.2")
    assert not believed(tmp_path, ssl.create_default_context(), "127.0.0.1")


def believed(folder: Path, trusting: ssl.SSLContext, name: str) -> bool:
    """Whether a client believes that the server of the folder's certificate is ``name``; both in memory."""
    identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.load_cert_chain(folder / "server.pem", folder / "server.key")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = trusting.wrap_bio(down, up, server_hostname=name), identity.wrap_bio(up, down, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError:
            return False
    return True
