"""Clients of an external Flower app: probes and audits, and update defences as mods."""
