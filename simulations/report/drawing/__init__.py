"""Charts and picture grids, as inline SVG and data URLs."""
