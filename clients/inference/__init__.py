"""The client's side of edge-cloud inference: the lower half of a trained classifier, which asks a cloud that holds the rest."""
