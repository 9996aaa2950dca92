"""Split transformers: slow references, timm's own uncut model, permutations, published sizes."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.sender import ClientHalf as EdgeProtocol
from clients.models.library import ModelError
from clients.models.split.halves import EdgeHalf, RawPatches, ServerHalf
from clients.models.split.split_models import DEFAULT_WIDTHS, SplitShape, build_split_model, split_model_names
from clients.models.split.t2t import PerformerAttention, SoftmaxAttention, TokensToToken, soft_split, soft_split_strides

NAMES = ["vit", "t2t", "t2t-performer"]
SMALL = SplitShape(patch_size=4, width=16, depth=3, heads=2, edge_blocks=1)


def build(
    name: str, shape: SplitShape = SMALL, images: tuple[int, int, int] = (3, 8, 12), seed: int = 0
) -> tuple[EdgeHalf, ServerHalf]:
    return build_split_model(name, num_classes=5, input_shape=images, shape=shape, seed=seed)


def lively(module: nn.Module) -> nn.Module:
    """In double precision, with weights so large that every part of the model shows in what it returns."""
    generator = torch.Generator().manual_seed(7)
    for parameter in module.double().parameters():
        scale = 1.5 / parameter[0].numel() ** 0.5
        parameter.data = scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module.eval()


def lively_halves(name: str, shape: SplitShape = SMALL) -> tuple[EdgeHalf, ServerHalf]:
    edge, server = build(name, shape)
    lively(edge), lively(server)
    return edge, server


def pictures(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("side", "patch"), [(28, 4), (28, 7), (32, 4), (32, 8)])
@pytest.mark.parametrize("name", NAMES)
def test_every_model_takes_images_of_common_sizes(name: str, side: int, patch: int, channels: int) -> None:
    shape = replace(SMALL, patch_size=patch)
    edge, server = build(name, shape, (channels, side, side))
    kept: EdgeProtocol = edge
    assert edge.training
    assert server.training
    tokens = (side // patch) ** 2
    assert (kept.grid, kept.patch_size) == ((side // patch, side // patch), patch)
    assert (edge.num_tokens, edge.dim) == (tokens, 16)
    features = edge(torch.rand(2, channels, side, side))
    assert features.shape == (2, tokens, 16)
    assert server(features).shape == (2, 5)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_commute_with_permutations_of_tokens_and_logits_do_not_notice_them(name: str) -> None:
    edge, server = lively_halves(name)
    tokens = edge.embed(pictures(2, 3, 8, 12))
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    encoded = edge.encode(tokens)
    assert (edge.encode(tokens[:, order]) - encoded[:, order]).abs().max() < 1e-5
    assert (encoded[:, order] - encoded).abs().max() > 0.1
    logits = server(encoded)
    assert (server(encoded[:, order]) - logits).abs().max() < 1e-5
    # The negative control: with positions, both claims are false.
    positions = pictures(6, 16)
    moved = edge.encode(tokens[:, order] + positions) - edge.encode(tokens + positions)[:, order]
    assert moved.abs().max() > 0.1
    assert (server(encoded[:, order] + positions) - server(encoded + positions)).abs().max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_each_half_prepends_its_own_class_token_and_the_client_drops_it(name: str) -> None:
    edge, server = build(name)
    assert edge.class_token is not None
    assert torch.equal(edge.class_token, server.class_token)
    lively(edge), lively(server)
    lengths: list[int] = []
    for half in (edge, server):
        half.blocks[0].register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    images = pictures(2, 3, 8, 12)
    features = edge(images)
    logits = server(features)
    assert lengths == [7, 7]
    assert features.shape[1] == 6
    with torch.no_grad():
        server.class_token += pictures(16)
        assert not torch.allclose(server(features), logits, atol=1e-2)
        edge.class_token += pictures(16)
    assert not torch.allclose(edge(images), features, atol=1e-2)


def uncut(name: str, edge: EdgeHalf, server: ServerHalf) -> VisionTransformer:
    """timm's own transformer with the weights of both halves; the embedding alone is ours where timm has none."""
    ratio, bias = (4.0, True) if name == "vit" else (3.0, False)
    whole = VisionTransformer(
        img_size=(8, 12), patch_size=4, embed_dim=16, depth=3, num_heads=2, num_classes=5,
        pos_embed="none", mlp_ratio=ratio, qkv_bias=bias,
    ).double()  # fmt: skip
    if name != "vit":
        whole.patch_embed = copy.deepcopy(edge.embedding)
    weights = {f"patch_embed.{key}": value for key, value in edge.embedding.state_dict().items()}
    for index, block in enumerate([*edge.blocks, *server.blocks]):
        weights |= {f"blocks.{index}.{key}": value for key, value in block.state_dict().items()}
    for part in ("norm", "head"):
        weights |= {f"{part}.{key}": value for key, value in getattr(server, part).state_dict().items()}
    whole.load_state_dict(weights | {"cls_token": server.class_token.data})
    return whole.eval()


@pytest.mark.parametrize("name", NAMES)
def test_the_halves_are_timms_transformer_unless_the_client_has_blocks(name: str) -> None:
    images = pictures(2, 3, 8, 12)
    edge, server = lively_halves(name, replace(SMALL, edge_blocks=0))
    assert edge.class_token is None
    assert torch.allclose(server(edge(images)), uncut(name, edge, server)(images), atol=1e-10)
    edge, server = lively_halves(name)
    assert edge.class_token is not None
    edge.class_token.data.copy_(server.class_token.data)
    # The class token that the client's block has changed never reaches the server.
    assert not torch.allclose(server(edge(images)), uncut(name, edge, server)(images), atol=1e-2)


@pytest.mark.parametrize("edge_blocks", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_weights_do_not_depend_on_where_the_model_is_cut(name: str, edge_blocks: int) -> None:
    reference = [block for half in build(name, replace(SMALL, edge_blocks=0)) for block in half.blocks]
    cut = [block for half in build(name, replace(SMALL, edge_blocks=edge_blocks)) for block in half.blocks]
    for one, other in zip(reference, cut, strict=True):
        assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("name", NAMES)
def test_widened_and_raw_tokens_pass_through_an_adapter(name: str) -> None:
    images = torch.rand(2, 3, 8, 12)
    edge, server = build(name, replace(SMALL, edge_blocks=0, widening=2))
    assert edge(images).shape == (2, 6, 16)
    assert server(torch.rand(2, 6, 32)).shape == (2, 5)
    edge, server = build(name, replace(SMALL, edge_blocks=0, widening=2, raw_patches=True))
    assert isinstance(edge.embedding, RawPatches)
    assert edge.dim == 48
    assert list(edge.parameters()) == []
    assert server(torch.rand(2, 6, 96)).shape == (2, 5)
    fast = set(map(id, server.fast_parameters()))
    assert fast == {id(p) for n, p in server.named_parameters() if n.startswith(("adapter.", "head."))}
    assert isinstance(build(name)[1].adapter, nn.Identity)


def test_raw_patches_are_the_pixels_by_row_column_and_channel() -> None:
    images = torch.rand(2, 3, 8, 12)
    tokens = RawPatches(4)(images)
    for row, column in itertools.product(range(2), range(3)):
        patch = images[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        assert torch.equal(tokens[:, 3 * row + column], patch.permute(0, 2, 3, 1).flatten(1))


def random_states() -> tuple[object, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("name", NAMES)
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    def weights(seed: int) -> list[Tensor]:
        return [value for half in build(name, seed=seed) for value in half.state_dict().values()]

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = weights(3)
    before = random_states()
    second = weights(3)
    assert random_states() == before
    torch.manual_seed(2)
    assert all(map(torch.equal, first, second))
    assert all(map(torch.equal, first, weights(3)))
    assert sum(not torch.equal(*pair) for pair in zip(first, weights(4), strict=True)) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_halves_survive_pickling_and_copying(name: str) -> None:
    edge, server = lively_halves(name)
    images = pictures(2, 3, 8, 12)
    logits = server(edge(images))
    for copied in (copy.deepcopy((edge, server)), pickle.loads(pickle.dumps((edge, server)))):
        assert torch.equal(copied[1](copied[0](images)), logits)
        assert copied[0].grid == (2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": 3}, "patch-size is 3; allowed: 1, 2, 4, which divide images of 8 x 12 pixels"),
        ({"patch_size": 0}, "patch-size is 0; allowed: 1, 2, 4, "),
        ({"width": 0}, "width is 0; allowed: 1 or more"),
        ({"depth": 0, "edge_blocks": 0}, "depth is 0; allowed: 1 or more"),
        ({"heads": 3}, "heads is 3; allowed: 1, 2, 4, 8, 16, which divide width = 16"),
        ({"heads": 0}, "heads is 0; allowed: 1, 2, 4, 8, 16"),
        ({"edge_blocks": 3}, "edge-blocks is 3; allowed: 0 to 2, below depth"),
        ({"edge_blocks": -1}, "edge-blocks is -1; allowed: 0 to 2"),
    ],
)
def test_sizes_that_do_not_fit_are_named_with_what_would(changes: dict[str, int], message: str) -> None:
    for name in NAMES:
        with pytest.raises(ModelError) as caught:
            build(name, replace(SMALL, **changes))
        assert message in str(caught.value)


def test_a_single_token_one_class_and_unknown_names_are_refused() -> None:
    with pytest.raises(ModelError, match=r"patch-size is 8; allowed: 1, 2, 4, .* at least two tokens"):
        build("vit", replace(SMALL, patch_size=8), (3, 8, 8))
    with pytest.raises(ModelError, match="num_classes is 1; a classifier needs at least 2"):
        build_split_model("vit", num_classes=1, input_shape=(3, 8, 12), shape=SMALL, seed=0)
    with pytest.raises(
        ModelError, match=r"unknown split model 't2t-perf', did you mean 't2t-performer'.*known: vit, t2t"
    ):
        build("t2t-perf")


def test_every_listed_model_can_be_built_at_its_default_width() -> None:
    assert list(split_model_names()) == [
        *NAMES,
        "difm",
        "difm-factors",
    ]  # tables have tests of their own (test_difm.py)
    for name in NAMES:
        assert build(name, replace(SMALL, width=DEFAULT_WIDTHS[name]))[0].dim == 64


def count(*modules: nn.Module) -> int:
    return sum(value.numel() for module in modules for value in module.state_dict().values())


def test_published_sizes_at_224_pixels() -> None:
    def edge(name: str, **sizes: int) -> EdgeHalf:
        return build(name, SplitShape(patch_size=16, **sizes), (3, 224, 224))[0]

    # Yao et al., table VI: 3.10 M and, counted twice, 1.18 M; the former with the frozen random features.
    half = edge("t2t-performer", width=512, depth=2, heads=8, edge_blocks=1)
    assert count(half.embedding, half.blocks) == 3_091_430
    assert count(edge("vit", width=768, depth=1, heads=12, edge_blocks=0)) == 590_592


@pytest.mark.parametrize(
    ("patch", "strides"),
    [(16, (4, 2, 2)), (8, (2, 2, 2)), (4, (2, 2, 1)), (7, (7, 1, 1)), (2, (2, 1, 1)), (1, (1, 1, 1)), (36, (4, 3, 3))],
)
def test_patch_sizes_become_three_strides(patch: int, strides: tuple[int, int, int]) -> None:
    assert soft_split_strides(patch) == strides


def test_soft_splits_overlap_and_fit_the_grid_at_every_stride() -> None:
    for stride in range(1, 15):
        for rows, columns in ((1, 2), (3, 1)):
            images = torch.arange(1.0, stride**2 * rows * columns + 1).view(1, 1, stride * rows, stride * columns)
            windows = soft_split(images, stride)
            assert windows.shape[1] == rows * columns
            assert set(images.flatten().tolist()) <= set(windows.flatten().tolist())
            shared = set(windows[0, 0].tolist()) & set(windows[0, 1].tolist()) - {0.0} if columns == 2 else {1.0}
            assert shared
    assert [soft_split(torch.zeros(1, 1, 8, 8), stride).shape[2] for stride in (4, 2, 1)] == [49, 9, 9]


def slow_split(image: Tensor, stride: int) -> Tensor:
    """Windows of one image (C, H, W), cut one at a time: (H / s * W / s, C * kernel * kernel)."""
    kernel, margin = (2 * stride - 1, stride // 2) if stride > 1 else (3, 1)
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * margin, width + 2 * margin, dtype=image.dtype)
    padded[:, margin : margin + height, margin : margin + width] = image
    starts = itertools.product(range(0, height, stride), range(0, width, stride))
    return torch.stack([padded[:, i : i + kernel, j : j + kernel].flatten() for i, j in starts])


def slow_attention(attention: SoftmaxAttention, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Of one image (N, dim), by the definition of softmax and, with features, of the Performer's estimate of it."""
    root = queries.shape[1] ** 0.5
    if isinstance(attention, PerformerAttention):
        scores = torch.zeros(len(queries), len(keys), dtype=queries.dtype)
        for feature in attention.random_features:
            phi = [(x @ feature / root**0.5 - x.square().sum(1) / 2 / root).exp() for x in (queries, keys)]
            scores += phi[0][:, None] * phi[1]
    else:
        scores = (queries @ keys.T / root).exp()
    return scores / scores.sum(1, keepdim=True) @ values


def slow_tokens(module: TokensToToken, image: Tensor, strides: tuple[int, int, int]) -> Tensor:
    """Section 3.1 of Yuan et al. for one image (C, H, W)."""
    _, rows, columns = image.shape
    for stride, layer in zip(strides[:2], module.transformers, strict=True):
        tokens = slow_split(image, stride)
        inner = F.linear(layer.norm1(tokens), layer.attention.qkv.weight, layer.attention.qkv.bias)
        queries, keys, values = inner[:, :64], inner[:, 64:128], inner[:, 128:]
        mixed = values + layer.attention.proj(slow_attention(layer.attention, queries, keys, values))
        mixed = mixed + layer.mlp(layer.norm2(mixed))
        rows, columns = rows // stride, columns // stride
        image = mixed.T.reshape(64, rows, columns)
    return module.project(slow_split(image, strides[2]))


@pytest.mark.parametrize(("patch", "size"), [(4, (8, 12)), (8, (16, 8)), (7, (7, 14))])
@pytest.mark.parametrize("attention", [SoftmaxAttention, PerformerAttention])
def test_tokens_to_token_agrees_with_a_slow_reference(
    attention: type[SoftmaxAttention], patch: int, size: tuple[int, int]
) -> None:
    module = TokensToToken(img_size=size, patch_size=patch, in_chans=2, embed_dim=6, attention=attention).double()
    images = pictures(2, 2, *size)
    tokens = module(images)
    assert module.num_patches == tokens.shape[1]
    for image, own in zip(images, tokens, strict=True):
        assert torch.allclose(own, slow_tokens(module, image, soft_split_strides(patch)), atol=1e-10)


@pytest.mark.parametrize("name", ["t2t", "t2t-performer"])
def test_a_token_of_t2t_depends_on_the_whole_image_and_one_of_vit_does_not(name: str) -> None:
    for model, spreads in ((name, True), ("vit", False)):
        edge, _ = lively_halves(model)
        images = pictures(1, 3, 8, 12).requires_grad_()
        (gradient,) = torch.autograd.grad(edge.embed(images)[0, 0].square().sum(), images)
        assert (gradient[..., 4:, 8:].abs().max() > 1e-9) == spreads


def attention_inputs(scale: float) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, values = scale * pictures(3, 2, 10, 8)
    return queries, keys, values


def test_performer_attention_converges_to_softmax_attention() -> None:
    parts = attention_inputs(0.5)
    exact = SoftmaxAttention(3, 8).attend(*parts)
    assert torch.allclose(exact[0], slow_attention(SoftmaxAttention(3, 8), *(part[0] for part in parts)))
    errors = []
    for num_features in (64, 64 * 64):
        torch.manual_seed(5)
        estimates = [PerformerAttention(3, 8, num_features).double().attend(*parts) for _ in range(8)]
        errors.append((torch.stack(estimates) - exact).square().mean().sqrt())
    # 64 times the features: an eighth of the error.
    assert 4 < errors[0] / errors[1] < 16
    assert errors[1] < 0.03 * exact.square().mean().sqrt()


def test_random_features_are_orthogonal_in_groups_and_frozen() -> None:
    torch.manual_seed(0)
    attention = PerformerAttention(3, 4, 6)
    rows = attention.random_features
    products = rows @ rows.T
    for group in (products[:4, :4], products[4:, 4:]):
        assert (group - group.diag().diag()).abs().max() < 1e-5
        assert group.diag().min() > 0
    assert "random_features" in attention.state_dict()
    assert "random_features" not in dict(attention.named_parameters())


def test_performer_attention_neither_overflows_nor_divides_by_zero() -> None:
    torch.manual_seed(0)
    attention = PerformerAttention(3, 8)
    parts = [part.float().requires_grad_() for part in attention_inputs(300.0)]
    result = attention.attend(*parts)
    gradients = torch.autograd.grad(result.sum(), parts)
    assert all(tensor.isfinite().all() for tensor in (result, *gradients))
    assert result.abs().max() <= parts[2].abs().max() * (1 + 1e-5)


def test_performer_attention_has_true_first_and_second_derivatives() -> None:
    torch.manual_seed(0)
    attention = PerformerAttention(3, 2, 2).double()
    parts = [part[:1, :3, :2].clone().requires_grad_() for part in attention_inputs(1.0)]
    assert torch.autograd.gradcheck(attention.attend, parts)
    assert torch.autograd.gradgradcheck(attention.attend, parts)
