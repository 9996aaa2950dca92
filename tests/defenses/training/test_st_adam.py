"""ST-Adam against torch's Adam through the closed-form factor, and as an optimizer among optimizers."""

import copy

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from defenses.base import Training
from defenses.random_draws import generator_for
from defenses.training.st_adam import STAdam, STAdamOptimizer


def gradients(steps: int) -> Tensor:
    return torch.randn(steps, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def steps_of(optimizer_class: type[torch.optim.Optimizer], grads: Tensor, **arguments: object) -> Tensor:
    """What each step adds to a parameter, for a given sequence of gradients: (steps, 5)."""
    parameter = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = optimizer_class([parameter], lr=0.1, betas=(0.9, 0.999), **arguments)
    points = [parameter.detach().clone()]
    for gradient in grads:
        parameter.grad = gradient.clone()
        optimizer.step()
        points.append(parameter.detach().clone())
    return torch.stack(points).diff(dim=0)


def test_a_step_is_adams_times_the_closed_form_factor() -> None:
    grads = gradients(1500)
    ours, adams = (steps_of(optimizer, grads, eps=0.0) for optimizer in (STAdamOptimizer, torch.optim.Adam))
    t = torch.arange(1, 1501, dtype=torch.float64).unsqueeze(1)
    factor = (1 - 0.9**t) / (1 - 0.999**t).sqrt()
    torch.testing.assert_close(ours, factor * adams, rtol=1e-9, atol=1e-12)
    # The factors of the analysis that accompanies the class: root ten first, largest at step 12, still 1.26 at step 1000.
    assert factor.argmax() + 1 == 12
    assert [round(factor[t - 1].item(), 4) for t in (1, 2, 10, 12, 1000)] == [3.1623, 4.2496, 6.5279, 6.5685, 1.2576]


def test_epsilon_is_added_to_the_root() -> None:
    step = steps_of(STAdamOptimizer, torch.full((1, 5), 2.0, dtype=torch.float64), eps=0.5)[0]
    torch.testing.assert_close(step, torch.full_like(step, -0.1 * 0.2 / ((0.001 * 4) ** 0.5 + 0.5)))


def test_groups_have_their_own_settings_parameters_without_gradient_stay_and_closures_have_gradients() -> None:
    slow, fast, unused = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    optimizer = STAdamOptimizer([{"params": [slow, unused], "lr": 0.1}, {"params": [fast], "lr": 1.0}])

    def closure() -> float:
        (slow + fast).sum().backward()
        return 9.0

    assert optimizer.step(closure) == 9.0
    torch.testing.assert_close(fast.detach(), 10 * slow.detach())
    assert slow.all()
    assert torch.equal(unused, torch.zeros(2))


def test_the_defence_replaces_the_optimizer_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    old = torch.optim.SGD([{"params": model[0].parameters(), "lr": 5.0}, {"params": model[1].parameters()}], lr=0.3)
    loader = DataLoader(TensorDataset(torch.zeros(2, 4), torch.zeros(2, 2)))
    training = Training(model, old, loader, lambda m, x, y: m(x).sum(), 1, 1, {"a": 1})
    weights = copy.deepcopy(model.state_dict())
    for corrected, kind in ((False, STAdamOptimizer), (True, torch.optim.Adam)):
        defense = STAdam(0.01, beta=0.8, gamma=0.9, epsilon=1e-3, bias_correction=corrected)
        protected = defense.protect_training(training, generator_for(0))
        assert isinstance(protected.optimizer, kind)  # with bias correction it is the paper's baseline
        groups = protected.optimizer.param_groups
        assert [group["params"] for group in groups] == [group["params"] for group in old.param_groups]
        settings = {(group["lr"], group["betas"], group["eps"]) for group in groups}
        assert settings == {(0.01, (0.8, 0.9), 1e-3)}
        assert (protected.model, protected.loader, protected.loss) == (model, loader, training.loss)
        assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
