"""One-to-one assignments of the lowest total cost."""

import torch
from torch import Tensor


def assigned(costs: Tensor) -> Tensor:
    """The column of each row: (..., M, M) -> (..., M) int64 on the CPU, every column once."""
    from scipy.optimize import linear_sum_assignment  # slow to load, and most runs assign nothing

    groups = costs.detach().double().cpu().reshape(costs.shape[:-2].numel(), *costs.shape[-2:]).numpy()
    return torch.stack([torch.from_numpy(linear_sum_assignment(matrix)[1]) for matrix in groups]).view(costs.shape[:-1])
