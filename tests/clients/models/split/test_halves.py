"""Split transformers: slow references, timm's own uncut model, permutations, published sizes."""

import copy
import itertools
import pickle
from dataclasses import replace

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

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


def test_blocks_commute_with_permutations_of_tokens_and_logits_do_not_notice_them() -> None:
    for name in NAMES:
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


def uncut(name: str, edge: EdgeHalf, server: ServerHalf) -> VisionTransformer:
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


def test_the_halves_are_timms_transformer_unless_the_client_has_blocks() -> None:
    for name in NAMES:
        images = pictures(2, 3, 8, 12)
        edge, server = lively_halves(name, replace(SMALL, edge_blocks=0))
        assert (edge.grid, edge.patch_size, edge.num_tokens, edge.dim) == ((2, 3), 4, 6, 16)
        assert edge.class_token is None
        assert torch.allclose(server(edge(images)), uncut(name, edge, server)(images), atol=1e-10)
        edge, server = lively_halves(name)
        assert edge.class_token is not None
        edge.class_token.data.copy_(server.class_token.data)
        # The class token that the client's block has changed never reaches the server.
        assert not torch.allclose(server(edge(images)), uncut(name, edge, server)(images), atol=1e-2)


def test_weights_depend_on_the_seed_alone_and_not_on_the_cut() -> None:
    def weights(name: str, seed: int, edge_blocks: int = 1) -> list[Tensor]:
        halves = build(name, replace(SMALL, edge_blocks=edge_blocks), seed=seed)
        return [value for half in halves for block in half.blocks for value in block.state_dict().values()]

    for name in NAMES:
        first, before = weights(name, 3), torch.get_rng_state()
        assert all(map(torch.equal, first, weights(name, 3)))
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        for edge_blocks in (0, 1, 2):
            assert all(map(torch.equal, first, weights(name, 3, edge_blocks)))
        assert sum(not torch.equal(*pair) for pair in zip(first, weights(name, 4), strict=True)) >= 10
        edge, server = lively_halves(name)
        copied = pickle.loads(pickle.dumps((edge, server)))
        assert torch.equal(copied[1](copied[0](pictures(2, 3, 8, 12))), server(edge(pictures(2, 3, 8, 12))))


def test_raw_patches_are_the_pixels_and_long_tokens_pass_through_an_adapter() -> None:
    for name in NAMES:
        _, server = build(name, replace(SMALL, edge_blocks=0, widening=2))
        assert server(torch.rand(2, 6, 32)).shape == (2, 5)
        fast = set(map(id, server.fast_parameters()))
        assert fast == {id(p) for n, p in server.named_parameters() if n.startswith(("adapter.", "head."))}
        assert isinstance(build(name)[1].adapter, nn.Identity)
    images = torch.rand(2, 3, 8, 12)
    tokens = RawPatches(4)(images)
    for row, column in itertools.product(range(2), range(3)):
        patch = images[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        assert torch.equal(tokens[:, 3 * row + column], patch.permute(0, 2, 3, 1).flatten(1))


def test_sizes_that_do_not_fit_are_named_with_what_would(subtests: pytest.Subtests) -> None:
    for name, changes, images, message in (
        ("vit", {"patch_size": 3}, (3, 8, 12), "patch-size is 3; allowed: 1, 2, 4, which divide images of 8 x 12"),
        ("vit", {"patch_size": 8}, (3, 8, 8), "patch-size is 8; allowed: 1, 2, 4, .* at least two tokens"),
        ("t2t", {"width": 0}, (3, 8, 12), "width is 0; allowed: 1 or more"),
        ("t2t", {"depth": 0, "edge_blocks": 0}, (3, 8, 12), "depth is 0; allowed: 1 or more"),
        ("vit", {"heads": 3}, (3, 8, 12), "heads is 3; allowed: 1, 2, 4, 8, 16, which divide width = 16"),
        ("vit", {"edge_blocks": 3}, (3, 8, 12), "edge-blocks is 3; allowed: 0 to 2, below depth"),
        ("t2t-perf", {}, (3, 8, 12), "unknown split model 't2t-perf', did you mean 't2t-performer'"),
    ):
        with subtests.test(message), pytest.raises(ModelError, match=message):
            build(name, replace(SMALL, **changes), images)
    assert list(split_model_names()) == [*NAMES, "difm", "difm-factors"]  # tables have tests of their own
    assert [build(name, replace(SMALL, width=DEFAULT_WIDTHS[name]))[0].dim for name in NAMES] == [64] * 3


def test_patch_sizes_become_three_strides() -> None:
    strides = {16: (4, 2, 2), 8: (2, 2, 2), 4: (2, 2, 1), 7: (7, 1, 1), 2: (2, 1, 1), 1: (1, 1, 1), 36: (4, 3, 3)}
    assert {patch: soft_split_strides(patch) for patch in strides} == strides
    assert [soft_split(torch.zeros(1, 1, 8, 8), stride).shape[2] for stride in (4, 2, 1)] == [49, 9, 9]


def slow_split(image: Tensor, stride: int) -> Tensor:
    kernel, margin = (2 * stride - 1, stride // 2) if stride > 1 else (3, 1)
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * margin, width + 2 * margin, dtype=image.dtype)
    padded[:, margin : margin + height, margin : margin + width] = image
    starts = itertools.product(range(0, height, stride), range(0, width, stride))
    return torch.stack([padded[:, i : i + kernel, j : j + kernel].flatten() for i, j in starts])


def slow_attention(attention: SoftmaxAttention, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
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


def test_tokens_to_token_agrees_with_a_slow_reference() -> None:
    for attention in [SoftmaxAttention, PerformerAttention]:
        for patch, size in [(4, (8, 12)), (8, (16, 8)), (7, (7, 14))]:
            made = TokensToToken(img_size=size, patch_size=patch, in_chans=2, embed_dim=6, attention=attention).double()
            images = pictures(2, 2, *size)
            tokens = made(images)
            assert made.num_patches == tokens.shape[1]
            for image, own in zip(images, tokens, strict=True):
                assert torch.allclose(own, slow_tokens(made, image, soft_split_strides(patch)), atol=1e-10)


def attention_inputs(scale: float) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, values = scale * pictures(3, 2, 10, 8)
    return queries, keys, values


def test_performer_attention_is_stable_and_has_true_derivatives_and_orthogonal_features() -> None:
    torch.manual_seed(0)
    attention = PerformerAttention(3, 4, 6)
    rows = attention.random_features
    products = rows @ rows.T
    for group in (products[:4, :4], products[4:, 4:]):
        assert (group - group.diag().diag()).abs().max() < 1e-5
        assert group.diag().min() > 0
    assert "random_features" in attention.state_dict()
    assert "random_features" not in dict(attention.named_parameters())
    torch.manual_seed(0)
    attention = PerformerAttention(3, 8)
    parts = [part.float().requires_grad_() for part in attention_inputs(300.0)]
    result = attention.attend(*parts)
    gradients = torch.autograd.grad(result.sum(), parts)
    assert all(tensor.isfinite().all() for tensor in (result, *gradients))
    assert result.abs().max() <= parts[2].abs().max() * (1 + 1e-5)
    torch.manual_seed(0)
    attention = PerformerAttention(3, 2, 2).double()
    parts = [part[:1, :3, :2].clone().requires_grad_() for part in attention_inputs(1.0)]
    assert torch.autograd.gradcheck(attention.attend, parts)
    assert torch.autograd.gradgradcheck(attention.attend, parts)
