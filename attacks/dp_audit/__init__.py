"""Audits of differential privacy: lower bounds of epsilon from canaries, records that the auditor inserts by fair coins."""
