"""Audits of external Flower apps: live, and of recorded updates."""
