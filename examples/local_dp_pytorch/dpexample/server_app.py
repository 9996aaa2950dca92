"""The app's server: federated averaging, audited while it runs."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from dpexample.task import Net
from simulations.audited import audited  # live

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds."""
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=config["fraction-evaluate"])
    strategy = audited(strategy, config["audit"], Net)  # live
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    print(result.evaluate_metrics_clientapp)
