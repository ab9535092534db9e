"""Which links destroy() removes; without torch, on each Python."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dsfix.catalogue.registry import catalogue

let_go = catalogue()["zero_destroy_leaves_tensors"].module.let_go


class Tensor:
    """A tensor of a storage, which is known by its address."""

    def __init__(self, address: int) -> None:
        self.address = address

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: self.address)


def parameter(address: int | None) -> Any:
    linked = None if address is None else SimpleNamespace(hp_fragment=Tensor(address))
    return SimpleNamespace(_hp_mapping=linked)


def test_only_links_to_the_own_optimizer_are_removed():
    """The parameters of a second engine of the same model are linked to that one's fp32 weights."""
    own, others, none = parameter(1), parameter(2), parameter(None)
    for names in (("bit16_groups", "single_partition_of_fp32_groups"), ("bf16_groups", "fp32_groups_flat_partition")):
        groups = [[own, others, none, SimpleNamespace()]]
        own._hp_mapping = SimpleNamespace(hp_fragment=Tensor(1))
        let_go(SimpleNamespace(**dict(zip(names, (groups, [Tensor(1)])))))
        assert own._hp_mapping is None
        assert others._hp_mapping.hp_fragment.address == 2


def test_hooks_that_destroy_removes_itself_are_left_to_it():
    nodes, kept = [object()], [object()]
    let_go(SimpleNamespace(grad_accs=nodes))
    let_go(SimpleNamespace(grad_accs=kept, _grad_acc_hooks=[]))
    assert (len(nodes), len(kept)) == (0, 1)


def test_an_engine_without_such_an_optimizer():
    for optimizer in (None, SimpleNamespace(), SimpleNamespace(bit16_groups=[], single_partition_of_fp32_groups=[])):
        let_go(optimizer)
