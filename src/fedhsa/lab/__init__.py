"""The lab: pages in the browser on which the settings of a federation are sliders, `fedhsa lab`.

Each page is a marimo file (`app.py`, `grid_worlds.py`), so that `marimo edit` opens it as a notebook. The numbers come
from ordinary modules next to the pages (`quadratic.py` for the first), and the pictures from `svg.py` and `figures.py`.
"""
