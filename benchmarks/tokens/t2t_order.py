"""The order of T2T's shuffled tokens, from the pixels that neighbouring tokens share, at 196 tokens.

    python benchmarks/tokens/t2t_order.py --side 56 --width 512 --images 4 --seed 0

T2T's last soft split projects windows of 3 x 3 features with 64 channels to a token, and neighbouring windows overlap. So two
tokens are right neighbours only if some features explain both, and the overlap counts once. Where both tokens together hold more
numbers than these features, that is a linear equation without a free variable: ``overlap_costs`` is its residual. The server
inverts the client's block first (``block_inversion.fixed_point``), and needs no image. ``--before-block`` gives it the tokens
that enter the block, as an upper bound. Weights are random, as in ``split_tokens.py``.
"""

from __future__ import annotations

import argparse

import torch
from split_tokens import MEAN, STD, shape_of, squares, whole_squares
from torch import Tensor

from attacks.image_measures import psnr
from attacks.normalisation import normalise
from attacks.sender import Sender
from attacks.smashed.block_inversion import doubled, fixed_point
from attacks.smashed.tokens.puzzle import solved
from clients.models.split.split_models import SplitShape, build_split_model
from clients.models.split.t2t import TOKEN_DIM, TokensToToken
from defenses.pipeline import Pipeline
from defenses.smashed.patch_shuffle import PatchShuffle

WINDOW = 3


def overlap_costs(tokens: Tensor, embedding: TokensToToken) -> tuple[Tensor, int]:
    """Residuals (2, N, N) of tokens (N, D) as right (0) and as lower (1) neighbours; and equations without a free variable."""
    stride, weight = embedding.strides[2], embedding.project.weight.double()
    window = weight.view(len(weight), TOKEN_DIM, WINDOW, WINDOW)
    centred, costs, count = tokens - embedding.project.bias.double(), [], 0
    for turned in (window, window.mT):
        both = weight.new_zeros(2, len(weight), TOKEN_DIM, WINDOW, WINDOW + stride)
        both[0, ..., :WINDOW], both[1, ..., stride:] = turned, turned
        axes, values, _ = torch.linalg.svd(both.flatten(2).flatten(0, 1))
        free = axes[:, int((values > 1e-9 * values[0]).sum()) :]
        count = free.shape[1]
        here, there = centred @ free[: len(weight)], centred @ free[len(weight) :]
        apart = torch.cdist(here, -there, compute_mode="donot_use_mm_for_euclid_dist")
        costs.append(apart.fill_diagonal_(1e9))
    return torch.stack(costs), count


def inverted(
    embedding: TokensToToken, tokens: Tensor, shape: tuple[int, int, int], known: Sender, steps: int
) -> Tensor:
    """The image (1, C, H, W) whose ordered tokens these (N, D) are, by L-BFGS from grey."""
    image = torch.full((1, *shape), 0.5).requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [image], max_iter=steps, max_eval=steps, history_size=30, tolerance_grad=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        loss = (embedding(normalise(image, known))[0] - tokens).square().mean() / tokens.var()
        (image.grad,) = torch.autograd.grad(loss, [image])
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return image.detach().clamp(0, 1)


def main() -> None:
    """Print what is found of each image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="t2t", choices=("t2t", "t2t-performer"))
    parser.add_argument("--side", type=int, default=56, choices=(56, 224))
    parser.add_argument("--width", type=int, default=512, help="length of a token; 512 in the paper")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="evaluations of the search for the image's pixels")
    parser.add_argument(
        "--before-block", action="store_true", help="attack the tokens that enter the block: an upper bound"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    patch = given.side // 14
    data = squares(56, given.seed, "same", 16) if given.side == 56 else whole_squares(224, given.seed, 16)
    shape = shape_of(data.clients)
    sizes = SplitShape(patch, given.width, 2, 8, 1)
    edge = build_split_model(given.model, num_classes=8, input_shape=shape, shape=sizes, seed=given.seed)[0]
    sender = Sender(edge.eval().requires_grad_(False), Pipeline((PatchShuffle(),)), MEAN, STD)
    double = doubled(edge)
    for number, image in enumerate(data.clients[: given.images, None]):
        received, order = sender.send_with_order(image, torch.Generator().manual_seed(given.seed))
        if given.before_block:
            tokens = double.embed(normalise(image.double(), sender))[:, order[0]]
            residual = torch.zeros(1)
        else:
            tokens, residual = fixed_point(double.encode, received.double(), 80)
        costs, equations = overlap_costs(tokens[0], edge.embedding)
        if not equations:
            print(f"image {number}: block residual {float(residual):.1e}; no equation without a free variable")
            continue
        board = solved(costs, (14, 14))[0]
        placed = int((order[0][board.flatten()] == torch.arange(196)).sum())
        line = f"image {number}: block residual {float(residual):.1e}; {equations} equations; {placed} of 196 tokens placed"
        if given.steps:
            ordered = tokens[0][board.flatten()].float()
            found = inverted(edge.embedding, ordered, shape, sender, given.steps)
            line += f"; {float(psnr(found, image)):.1f} dB"
        print(line, flush=True)


if __name__ == "__main__":
    main()
