"""The client of federated learning."""
