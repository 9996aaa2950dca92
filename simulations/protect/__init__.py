"""Protected copies of anyone's images: a folder or a data set in, the same pictures behind a defence out."""
