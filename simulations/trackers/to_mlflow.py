"""Runs to MLflow: a tracking server, a database or files, as ``MLFLOW_TRACKING_URI`` says."""

from __future__ import annotations

import time

import mlflow
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from simulations.trackers.tracked import Tracked

METRICS, PARAMS = 1000, 100
"""Most that one request may hold."""
LONGEST_VALUE = 6000
"""Characters of a parameter, of which a server takes no more; config.json, among the artifacts, has all of them."""


def ready() -> None:
    """Asks the store for anything."""
    MlflowClient().search_experiments(max_results=1)


def send(tracked: Tracked) -> str:
    """Logs the run under the experiment of its name; says where."""
    client, now = MlflowClient(), int(time.time() * 1000)
    known = client.get_experiment_by_name(tracked.experiment)
    experiment = known.experiment_id if known else client.create_experiment(tracked.experiment)
    run = client.create_run(experiment, run_name=tracked.name, tags={MLFLOW_RUN_NOTE: tracked.conclusions})
    key = run.info.run_id
    status = "FAILED"
    try:
        params = [Param(name, value[:LONGEST_VALUE]) for name, value in tracked.params.items()]
        metrics = [
            Metric(name, value, now, step) for step, values in tracked.metrics.items() for name, value in values.items()
        ]
        for at in range(0, len(params), PARAMS):
            client.log_batch(key, params=params[at : at + PARAMS])
        for at in range(0, len(metrics), METRICS):
            client.log_batch(key, metrics=metrics[at : at + METRICS])
        for path in tracked.artifacts:
            client.log_artifact(key, str(path))
        status = "FINISHED"
    finally:
        client.set_terminated(key, status)
    return f"run {key} of experiment {tracked.experiment!r} at {mlflow.get_tracking_uri()}"
