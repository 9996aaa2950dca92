"""Search for a defence's settings before any client trains: private ones that a model still learns from."""
