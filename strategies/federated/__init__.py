"""The server of federated learning."""
