"""DIFM against its equations, written as loops in NumPy.

These loops, and the model with them, were once compared with ``deepctr_torch.models.DIFM`` 0.3.0 under the same weights (linear
weights of its categories set to <a_i, v_i>): in double precision probabilities of 64 rows differed by 1e-14 at most, for
(F, D, heads) = (4, 4, 4) and (3, 8, 2).
"""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from clients.models.split.difm import DIFMServer, FieldEmbedding
from clients.models.split.split_models import SplitShape, build_split_model

SIZES = (5, 7, 3, 9)
Array = NDArray[np.float64]


def weight(module: torch.nn.Module, name: str) -> Array:
    return np.asarray(module.get_parameter(name).detach().double().numpy())


def slow_logit(server: DIFMServer, tokens: Array, heads: int) -> float:
    fields, dim = tokens.shape
    names = ("query", "key", "value", "residual")
    q, k, v, r = (tokens @ weight(server.branches, f"vector_wise.{name}.weight").T for name in names)
    size, mixed = dim // heads, np.zeros((fields, dim))
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for i in range(fields):
            scores = np.exp([q[i, part] @ k[j, part] / np.sqrt(size) for j in range(fields)])
            mixed[i, part] = sum(scores[j] / scores.sum() * v[j, part] for j in range(fields))
    vector = weight(server, "branches.from_vector.weight") @ np.maximum(mixed + r, 0).flatten()
    hidden = tokens.flatten()
    for layer in (0, 2):
        matrix, bias = (weight(server, f"branches.bit_wise.{layer}.{name}") for name in ("weight", "bias"))
        hidden = np.maximum(matrix @ hidden + bias, 0)
    factors = vector + weight(server, "branches.from_bit.weight") @ hidden
    logit = float(weight(server, "prediction.bias"))
    for i in range(fields):
        logit += factors[i] * (weight(server, "prediction.linear")[i] @ tokens[i])
        for j in range(i):
            logit += (factors[i] * tokens[i]) @ (factors[j] * tokens[j])
    return logit


def test_logits_are_those_of_the_equations() -> None:
    for dim, heads in [(4, 4), (4, 1), (8, 2)]:
        torch.manual_seed(0)
        server = DIFMServer(4, dim, heads).double()
        for parameter in server.parameters():
            parameter.data = torch.randn_like(parameter) / 2
        tokens = torch.randn(6, 4, dim, dtype=torch.float64)
        logits = server(tokens).detach().numpy()
        assert np.all(logits[:, 0] == 0)
        np.testing.assert_allclose(logits[:, 1], [slow_logit(server, row, heads) for row in tokens.numpy()], rtol=1e-9)
    torch.manual_seed(1)
    server, tokens, order = DIFMServer(4, 4, 4), torch.randn(3, 4, 4), torch.tensor([2, 0, 3, 1])
    vector_wise = server.branches.vector_wise
    torch.testing.assert_close(vector_wise(tokens)[:, order], vector_wise(tokens[:, order]))
    assert (server(tokens) - server(tokens[:, order])).abs().max() > 1e-4


def test_every_column_has_embeddings_of_its_own() -> None:
    embedding = FieldEmbedding(SIZES, 4)
    rows = torch.tensor([[0, 0, 0, 0], [4, 6, 2, 8]], dtype=torch.int32)[:, None, :, None]
    found = embedding(rows)
    assert torch.equal(found[0], embedding.table.weight[[0, 5, 12, 15]])
    assert torch.equal(found[1], embedding.table.weight[[4, 11, 14, 23]])
    for wrong in (rows + 1, rows - 1, rows[:, :, :3]):
        with pytest.raises(ValueError, match="no categories"):
            embedding(wrong)


def test_cut_before_the_prediction_layer_it_is_the_same_function() -> None:
    shape = SplitShape(4, 4, 4, 4, 1)
    edge, server = build_split_model(
        "difm-factors", num_classes=2, input_shape=(1, 4, 1), shape=shape, seed=5, cardinalities=SIZES
    )
    whole = DIFMServer(4, 4, 4)
    whole.branches.load_state_dict(edge.branches.state_dict())  # type: ignore[union-attr]
    whole.prediction.load_state_dict(server.state_dict())
    rows = torch.tensor([[0, 0, 0, 0], [4, 6, 2, 8]])[:, None, :, None]
    tokens, order = edge.embed(rows), torch.tensor([2, 0, 3, 1])
    sent = edge(rows)
    assert sent.shape == (2, 4, edge.token_length) == (2, 4, 6)
    assert torch.equal(edge.embeddings_in(sent), tokens)
    torch.testing.assert_close(server(sent), whole(tokens))
    shuffled = edge.encode(tokens[:, order], tokens)
    torch.testing.assert_close(shuffled[..., 0], whole.vector_factors(tokens[:, order]))
    assert torch.equal(shuffled[..., 1:], sent[..., 1:])
