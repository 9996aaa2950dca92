"""How many orders of tokens a shuffled batch can be sent in: the privacy statement of the shuffling paper.

With N tokens per image of which K stay native, N' = N - K, and B images (Yao et al., ICDM 2022, sigma-privacy):

    equation 7, all orders of a batch:                          (C(N, K) K!)^B       (B N')!
    equation 8, those with the target's tokens in one order:    (C(N, K) K!)^(B-1)   ((B - 1) N')!

Their ratio is the chance that an image is sent with all of its own tokens in one given order. That is what a guesser faces that
ignores the tokens themselves. The tokens are on the wire, so it bounds no real attack.
"""

from __future__ import annotations

import math


def order_counts(num_tokens: int, num_native: int, batch_size: int) -> dict[str, float]:
    """log10 of equation 7, and of equation 8 over equation 7, by the names under which they are reported.

    For N >= 1 tokens of which K stay native (N: a shuffle within each image), and B >= 1 images; -log10(N!) the second for K = N.
    """
    pooled = num_tokens - num_native
    kept = math.lgamma(num_tokens + 1) - math.lgamma(pooled + 1)  # log of C(N, K) K! = N! / N'!
    every, target = (
        (images * kept + math.lgamma(images * pooled + 1)) / math.log(10) for images in (batch_size, batch_size - 1)
    )
    return {"log10-orders": every, "log10-target-share": target - every}
