"""The server side: a curious FedAvg, and what every server of a scenario shares: the guard and the exchange with the nodes."""
