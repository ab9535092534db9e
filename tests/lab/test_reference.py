import pytest

QUESTIONS = """
import json, torch
from torch import nn
from dsfix.lab import reference

def error(call):
    try:
        call()
    except ValueError as e:
        return str(e)

# mean over micro-batches and one clipped SGD step, by hand
weight = nn.Linear(1, 1, bias=False)
nn.init.constant_(weight.weight, 1.0)
batches = [[(torch.tensor([[1.0]]),), (torch.tensor([[3.0]]),)]]
by_hand = reference.train(weight, batches, lambda x: weight(x).sum(), "SGD", clip=0.5, lr=1.0)
weight = nn.Linear(1, 1, bias=False)
nn.init.constant_(weight.weight, 1.0)
steps = [[(torch.tensor([[1.0]]),)], [(torch.tensor([[2.0]]),)]]
changing = reference.train(weight, steps, lambda x: weight(x).sum(), "SGD", rates=[0.5, 0.125], lr=9.0)

a = {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([4.0])}
b = {"x": torch.tensor([1.0, 2.5]), "y": torch.tensor([4.0])}
nan = {**a, "y": torch.tensor([float("nan")])}
differences = dict(
    none=vars(reference.largest_difference(a, a)), some=vars(reference.largest_difference(b, a)),
    text=str(reference.largest_difference(b, a)), nan=reference.largest_difference(nan, a).name,
    names=error(lambda: reference.largest_difference({"x": a["x"]}, a)),
    shapes=error(lambda: reference.largest_difference({**a, "y": torch.ones(2)}, a)))
print(json.dumps(dict(differences=differences,
    by_hand=[by_hand.losses, by_hand.gradient_norms, by_hand.parameters["weight"].item()],
    changing=[*changing.losses, changing.parameters["weight"].item()])))
"""


@pytest.fixture(scope="module")
def seen(has_torch, answer):
    return answer(QUESTIONS)


def test_reference_by_hand(seen):
    assert seen["by_hand"] == [[2.0], [2.0], pytest.approx(0.5)]


def test_a_rate_for_each_step(seen):
    assert seen["changing"] == [1.0, 1.0, 0.25]  # 1 - 0.5 * 1 - 0.125 * 2


def test_largest_difference(seen):
    assert seen["differences"] == {
        "none": {"name": "x", "absolute": 0.0, "relative": 0.0},
        "some": {"name": "x", "absolute": 0.5, "relative": 0.25},
        "text": "x differs by 0.5 (relative 0.25)",
        "nan": "y",
        "names": "names differ: ['y']",
        "shapes": "y has shape (2,), expected (1,)",
    }
