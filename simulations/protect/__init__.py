"""Protected copies of a user's images: the pictures of a folder or a data set, behind a defence."""
