"""The server side: a curious FedAvg, and parts that all servers share, such as the guard and the exchange with the nodes."""
