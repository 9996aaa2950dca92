"""What an app shows when its ServerApp starts: run in a child process, without network, data or training."""
