"""Claims on ADP (Higgins et al., delta protection) that numbers of an earlier page decide."""

from __future__ import annotations

from adp_claims import THREE
from entry import Quoted

MEASURED = (
    *((0.78, 0.02, 50), (0.77, 0.02, 50), (0.74, 0.02, 50), (0.73, 0.02, 50), (0.48, 0.05, 36)),
    *((0.62, 0.02, 50), (0.54, 0.02, 50), (0.48, 0.02, 50), (0.51, 0.02, 50), (0.29, 0.03, 16)),
    *((0.20, 0.02, 0), (0.18, 0.01, 0), (0.15, 0.01, 0), (0.19, 0.01, 0), (0.10, 0.01, 0)),
)
"""Of each claim of Table 3: MS-SSIM, half the width of its interval, and images of 50 above the paper's threshold."""
WITHOUT = tuple(at for at, claim in enumerate(THREE) if claim.control)
"""The rows without a defence."""


def _fails(at: int) -> bool:
    """Whether the attack fails without a defence at the cut of a row, so that its failure behind one shows nothing."""
    value, half, _ = MEASURED[max(row for row in WITHOUT if row <= at)]
    return value - half <= THREE[at].bound


THREE_QUOTED = tuple(
    Quoted(
        claim.says,
        value,
        value - half,
        value + half,
        claim.side,
        claim.bound,
        f"| {value:.2f} ± {half:.2f}; {images} of 50 |",
        paper=claim.terms[0][1].paper,
        note="not-validated" if _fails(at) and not claim.control else "",
    )
    for at, (claim, (value, half, images)) in enumerate(zip(THREE, MEASURED, strict=True))
)
