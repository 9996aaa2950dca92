"""``fedveil search --objective measured``: hybrids of policies that short trainings and short attacks judge."""
