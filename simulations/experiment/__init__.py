"""The experiment: settings resolved and checked against each other, and the interface of scenarios."""
