"""What the rows of a run mean: studies, controls, verdicts."""
