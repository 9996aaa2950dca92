"""What an attack spent, and the loss that it minimised."""

from attacks.metrics.metric import Metric, Share

OBJECTIVE = Metric("objective", higher_leaks=False)
FEATURE_LOSS = Metric("feature_loss", higher_leaks=False)
LOSSES = (OBJECTIVE, FEATURE_LOSS)
"""Losses that attacks minimise, by the names of their diagnostics."""
RELATIVE_LOSS = Metric("relative_loss", higher_leaks=False, shown=())
PAIRING_COST = Metric("pairing_cost", higher_leaks=False, shown=())
"""Further losses among the diagnostics of attacks."""
ATTACK_SECONDS = Metric("attack-seconds", higher_leaks=False)
MODEL_REFUSED = Share("model-refused", higher_leaks=False, shown=())
"""Clients that refused the model that an active server sent."""
ATTACK = Metric("attack")
"""Row of an attack that gave no score at all."""
