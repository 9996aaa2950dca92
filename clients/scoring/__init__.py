"""How a client scores guesses of its own examples: the truth stays here."""
