"""How good a guess is: the one place in attacks/ that may hold the truth."""
