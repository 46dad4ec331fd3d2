"""What is read live and what is copied, decided without a byte being moved."""

import pytest
import torch
from snapshots import MIB

from gdsckpt.format.layout import MEDIUM_BYTES, payload_order
from gdsckpt.saving import content_of
from gdsckpt.snapshot.fence import storages_of
from gdsckpt.snapshot.placing import Placing, place, rooms_for
from gdsckpt.snapshot.source import Source

LARGE = MEDIUM_BYTES // 4  # float32


def placed(state, optimizer=None, room_bytes=64 * MIB, **more):
    owned = {} if optimizer is None else storages_of(optimizer)
    return place(Source(state, content_of(state)), owned, room_bytes, **more)


def test_without_an_optimizer_all_is_copied_in_the_order_of_the_file():
    state = {"s": torch.zeros(3), "l": torch.zeros(LARGE), "m": torch.zeros(LARGE)}
    assert placed(state) == Placing((), (), (1, 2, 0))
    assert payload_order([12, 4 * LARGE, 4 * LARGE]) == [1, 2, 0]


def test_what_the_optimizer_owns_is_fenced():
    model = torch.nn.BatchNorm1d(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = placed(model.state_dict(), optimizer)
    assert found == Placing((0, 1), (), (2, 3, 4))  # weight, bias; mean, variance, count


def test_too_little_room_takes_the_last_storages_of_the_file():
    state = {"s": torch.zeros(16), "l": torch.zeros(LARGE), "m": torch.zeros(LARGE)}
    assert placed(state, room_bytes=4 * LARGE + 64) == Placing((), (1,), (2, 0))
    assert placed(state, room_bytes=4 * LARGE + 63) == Placing((), (1, 2), (0,))
    assert placed(state, room_bytes=63) == Placing((), (1, 2, 0), ())
    assert placed(state, room_bytes=0) == Placing((), (1, 2, 0), ())


def test_empty_storages_need_no_room():
    assert placed({"e": torch.zeros(0)}, room_bytes=0) == Placing((), (), (0,))


def test_clones_are_none_of_the_three():
    state = [torch.zeros(3), torch.zeros(4)]
    assert placed(state, cloned={0}) == Placing((), (), (1,))


def test_storage_that_shows_more_than_parameters_is_copied():
    flat = torch.zeros(10)
    weight = torch.nn.Parameter(flat[2:6])
    optimizer = torch.optim.SGD([weight], lr=0.1)
    assert placed({"w": weight.detach(), "mean": flat[6:]}, optimizer).copied == (0,)
    assert placed({"w": weight.detach(), "flat": flat}, optimizer).copied == (0,)
    assert placed({"w": weight.detach(), "part": flat[3:5]}, optimizer).fenced == (0,)


def test_parameters_that_share_one_storage_cover_it_together():
    flat = torch.zeros(10)
    parts = [torch.nn.Parameter(part) for part in flat.split(5)]
    optimizer = torch.optim.SGD(parts, lr=0.1)
    assert placed({"flat": flat}, optimizer).fenced == (0,)
    assert placed({"flat": flat[::2]}, optimizer).fenced == (0,)


@pytest.mark.parametrize(("nbytes", "room"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_room_is_whole_cache_lines(nbytes, room):
    assert rooms_for([nbytes]) == [room]


def test_lists_in_the_state_of_an_optimizer_are_owned():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.LBFGS([weight], max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = (weight**4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = optimizer.state[weight]
    directions = {tensor.untyped_storage()._cdata for tensor in state["old_dirs"]}
    assert directions
    assert directions <= storages_of(optimizer).keys()
