"""The app's server: federated averaging, recorded."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pytorchexample.task import Net
from simulations.audited import audited  # live
from strategies.recording import RecordingStrategy  # audit

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds."""
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=config["fraction-evaluate"])
    if config["recording"]:  # audit
        strategy = RecordingStrategy(strategy, config["recording"], settings=config)  # audit
    strategy = audited(strategy, config["audit"], Net)  # live
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    print(result.evaluate_metrics_clientapp)
