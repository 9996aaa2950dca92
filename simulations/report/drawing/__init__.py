"""Charts and picture grids, as inline SVG and data URLs.

Charts were drawn by code of our own (scales, ticks, markers, placing of labels) until the same data was drawn by matplotlib, with
names moved by adjustText, and both were looked at side by side, at 1280 and 400 pixels, light and dark: they look alike. matplotlib
costs about a second to import and a tenth of a second a chart, which ``report/throttle.py`` keeps from slowing a run;
``canvas.py`` makes its colours, fonts and ids those of the page.
"""
