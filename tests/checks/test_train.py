"""The bugs of notebook 06's exercise 3: each experiment that a hint names shows its own bug, and no other."""

import copy
import functools
import math

import pytest
import torch

from checks.train import COUNTER_TESTS, LOOP_BUGS, MAX_NORM, STEPS, Loop, small_model, training_loop
from helpers.train import train

DRAWS = torch.randint(512, (2, 2, 8, 32), generator=torch.Generator().manual_seed(0))


@functools.cache
def after(bug, steps, clear=False):
    """A loop after so many steps, to look at, and its losses."""
    loop = Loop(bug)
    losses = [loop.step(*DRAWS[0])]
    for step in range(1, steps):
        if clear:
            loop.optimizer.zero_grad()
        losses.append(loop.step(*DRAWS[step]))
    return loop, losses


def gradients(loop):
    return torch.cat([weight.grad.flatten() for weight in loop.model.parameters()])


def rates(bug):
    """The learning rate after steps 1, 2 and 60; what is trained on does not change it."""
    loop, found = Loop(bug), []
    for loop._done in (0, 1, STEPS - 1):
        loop.step(*DRAWS[0, :, :1, :2])
        found.append(loop.optimizer.param_groups[0]["lr"])
    return found


EXPERIMENTS = {
    "inputs as targets": lambda bug: Loop(bug).step(*DRAWS[0]) == Loop(bug).step(DRAWS[0, 0], DRAWS[1, 1]),
    "softmax over positions": lambda bug: abs(after(bug, 1)[1][0] - math.log(32)) < 0.3,
    "gradients add up": lambda bug: not torch.equal(*(gradients(after(bug, 2, clear)[0]) for clear in (False, True))),
    "gradient not clipped": lambda bug: gradients(after(bug, 1)[0]).norm() > 1.01 * MAX_NORM,
    "clipped after the step": lambda bug: any(
        not torch.allclose(loop.optimizer.state[weight]["exp_avg"], weight.grad / 10)
        for loop in [after(bug, 1)[0]]
        for weight in loop.model.parameters()
    ),
    "no warm-up": lambda bug: rates(bug)[0] > rates(bug)[2] + 1e-3,
    "rate never set": lambda bug: len(set(rates(bug))) == 1,
    "gains decay": lambda bug: any(
        group["weight_decay"] for group in Loop(bug).optimizer.param_groups if group["params"][0].ndim == 1
    ),
}


@pytest.mark.parametrize("named", LOOP_BUGS)
def test_the_experiment_of_a_hint_shows_its_bug_alone(named):
    assert set(EXPERIMENTS) == set(COUNTER_TESTS) == set(LOOP_BUGS)
    assert [bug for bug in ("", *LOOP_BUGS) if EXPERIMENTS[named](bug)] == [named]


def test_no_attribute_of_a_loop_tells_its_bug_and_a_copy_is_a_loop_of_its_own():
    assert not any(isinstance(value, str) for bug in LOOP_BUGS for value in vars(Loop(bug)).values())
    loop = Loop()
    twin = copy.deepcopy(loop)
    before = [weight.clone() for weight in loop.model.parameters()]
    twin.step(*DRAWS[0])
    assert all(torch.equal(*pair) for pair in zip(before, loop.model.parameters(), strict=True))


def test_the_loop_of_exercise_1_is_the_one_of_the_course():
    tokens, draws = DRAWS.flatten() % 24, torch.Generator().manual_seed(0)
    starts = torch.cat([torch.randint(len(tokens) - 16, (2, 1), generator=draws).T for _ in range(9)])
    known = train(small_model(3), lambda: tokens, steps=9, batch_size=2, peak=0.03, warm_up=3, weight_decay=0.1)
    assert training_loop(small_model(3), tokens, starts, 16, 0.03, 3) == pytest.approx(known, rel=1e-5)
