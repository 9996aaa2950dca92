"""``fedveil card``: one page of a run for the decision on a release, as a section of a model card or as a PDF."""
