"""The client's side of outsourced training: it uploads protected images with their labels, and the server trains on them."""
