"""Where tests that need Ray's workers are left out: Ray 2.55 starts none from a path with a space, and waits for them."""

import sys
import tempfile
from pathlib import Path

import pytest

REASON = "Ray starts no worker from a path with a space"
PLACES = (Path(__file__).resolve(), sys.executable, tempfile.gettempdir())

needs_ray_workers = pytest.mark.skipif(any(" " in str(place) for place in PLACES), reason=REASON)
