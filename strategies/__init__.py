"""The server side: a curious FedAvg, the pool that attacks beside training, and the auditor that asks clients for scores."""
