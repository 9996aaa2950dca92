"""One torch thread for all tests: many small operations, which threads only make wait for each other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
