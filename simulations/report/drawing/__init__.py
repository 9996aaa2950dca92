"""Charts by matplotlib, and picture grids, as inline SVG and data URLs.

matplotlib costs about a second to import and a tenth of a second a chart, which ``Throttle`` keeps from slowing a run.
"""
