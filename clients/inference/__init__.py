"""The client's side of edge-cloud inference: the lower half of a trained classifier; a cloud holds the upper half."""
