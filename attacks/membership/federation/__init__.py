"""Attacks on membership by a server that sees several rounds of a client, and the other clients' updates."""
