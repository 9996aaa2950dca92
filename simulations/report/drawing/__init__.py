"""Charts as values, and picture grids as data URIs; the page's templates draw them."""
