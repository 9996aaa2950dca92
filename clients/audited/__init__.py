"""The clients of anybody's own Flower app: what answers probes and audits there, and update defences as mods."""
