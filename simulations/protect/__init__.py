"""Protected copies of a user's images: a folder or a data set in, the same pictures behind a defence out."""
