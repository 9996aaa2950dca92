"""Where tests that need Ray's workers are left out: Ray 2.55 starts none from a path with a space."""

import pytest

from clients.process.ray_cluster import spaced_path

REASON = "Ray starts no worker from a path with a space"

needs_ray_workers = pytest.mark.skipif(bool(spaced_path()), reason=REASON)
