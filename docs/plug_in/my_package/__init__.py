"""Parts for fedveil: a defence, two attacks, a model and a data set."""
