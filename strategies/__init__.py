"""The server side: a curious FedAvg, and shared parts of all servers, such as the guard and the exchange with the nodes."""
