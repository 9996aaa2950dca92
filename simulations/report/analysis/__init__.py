"""Analysis of a run's rows: studies, controls, verdicts."""
