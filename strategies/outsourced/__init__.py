"""The server of outsourced training."""
