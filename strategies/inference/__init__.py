"""The server of edge-cloud inference."""
