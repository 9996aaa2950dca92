"""Trial of an app: start its ServerApp in a child process, without network, data or training."""
