"""Under which names apps tell numbers of their training: those of Flower's templates first."""

from __future__ import annotations

EXAMPLES = ("num-examples", "num_examples")
RATES = ("lr", "learning-rate", "learning_rate")
BATCHES = ("batch-size", "batch_size")
EPOCHS = ("local-epochs", "local_epochs", "epochs")
