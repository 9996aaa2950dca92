"""A worker process that ends costs the message that ended it, and no other. Real Ray, Flower's own pool."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = """
import json, queue, sys
from concurrent.futures import ThreadPoolExecutor

import clients  # as in Flower's driver: sys.argv[0] is flwr-simulation
import ray
from flwr.simulation.ray_transport.ray_actor import BasicActorPool, ClientAppActor


def load_app():
    def app(message, context):
        if message == "dies":
            import os
            os._exit(1)
        return "answered"
    return app


def work():
    # The loop of Flower's worker threads (vce_api.worker with RayBackend.process_message).
    while True:
        try:
            number, message = waiting.get_nowait()
        except queue.Empty:
            return
        future = pool.submit(lambda actor, *given: actor.run.remote(*given), (load_app, message, str(number), None))
        try:
            found[number] = pool.fetch_result_and_return_actor_to_pool(future)[0]
        except Exception as error:
            found[number] = type(error).__name__
            pool.add_actor_back_to_pool(future)


ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
pool = BasicActorPool(ClientAppActor, {"num_cpus": 1, "num_gpus": 0.0}, {})
pool.add_actors_to_pool(2)
waiting, found = queue.Queue(), {}
for number in range(20):
    waiting.put((number, "dies" if number in DYING else "lives"))
with ThreadPoolExecutor() as threads:
    for _ in range(2):
        threads.submit(work)
with open(sys.argv[1], "w") as file:  # and not printed: the driver prints what Ray's workers log, at any time
    json.dump([number for number in range(20) if found[number] != "answered"], file)
ray.shutdown()
"""


@pytest.mark.slow
def test_only_the_messages_that_end_their_worker_are_lost(tmp_path: Path) -> None:
    dying = [9, 10]
    # The name by which clients/__init__.py knows that it is loaded by a simulation.
    script = tmp_path / "flwr-simulation"
    script.write_text(DRIVER.replace("DYING", repr(dying)))
    root = Path(__file__).resolve().parents[3]
    lost = tmp_path / "lost.json"
    done = subprocess.run(
        [sys.executable, str(script), str(lost)], env={**os.environ, "PYTHONPATH": str(root)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(lost.read_text()) == dying


WATCHED = """
import ctypes, signal, sys, time
sys.argv = ["default_worker.py"]  # the name by which the watchdog knows a worker of Ray
from flwr.app import ConfigRecord, Context, Message, RecordDict
import clients.messages.node
from clients.flower_private import act_as_task

def answers(message, context):
    return message

def deaf(message, context):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.PyDLL(None).sleep(600)  # keeps the interpreter's lock: no thread of Python can end it either

clients.messages.node.GRACE_SECONDS = 0.2
act_as_task()
message = Message(RecordDict({"config": ConfigRecord({"timeout": 0.2})}), 1, "train")
clients.messages.node.watchdog(message, Context(1, 1, {}, RecordDict(), {}), answers)
time.sleep(1)
print("lives on", flush=True)
clients.messages.node.watchdog(message, Context(1, 1, {}, RecordDict(), {}), deaf)
"""


@pytest.mark.slow
def test_a_call_that_hears_no_alarm_ends_its_worker_and_is_named_and_no_other_does() -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], cwd=root, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert done.stdout == "lives on\n"
    assert "Timeout (0:00:00.4" in done.stderr
    assert "in deaf" in done.stderr
