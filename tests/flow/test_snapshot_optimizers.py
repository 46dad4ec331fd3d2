"""Real optimizers meet a snapshot that is still being written: their steps wait, then go on.

In each test the training thread steps, and the memory is read only when the step waits: what was
read is then of the call, or the step did not wait.
"""

import copy
import gc
import os
import signal
import sys
import threading

import pytest
import torch
from snapshots import (
    check,
    give_gradients,
    slots,
    snap,
    trained,
    training_state,
    when_a_step_waits,
    write,
)
from states import assert_same

from gdsckpt.errors import StorageError
from gdsckpt.snapshot import fence


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


class WrittenWhenAStepWaits:
    """A thread that writes a snapshot as soon as a step waits for it, and then lifts the fence."""

    def __init__(self, snapshot, path):
        self.loaded = None
        self.error = None
        self._snapshot = snapshot
        self._path = path

    def __enter__(self):
        self._told = when_a_step_waits()
        self.waiting = self._told.__enter__()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()
        return self

    def __exit__(self, *raised):
        self.waiting.set()
        self._thread.join()
        self._told.__exit__(*raised)
        self._snapshot.release()
        if self.error is not None and raised[0] is None:
            raise self.error

    def _write(self):
        self.waiting.wait()
        try:
            self.loaded = write(self._snapshot, self._path)
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self.error = error
        finally:
            self._snapshot.staged()


def has_changed(before, model):
    return any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def require_wait(model, optimizer, step, path, given=None):
    """Step while a snapshot is in flight, and require that it waited and that all is right."""
    state = training_state(model, optimizer)
    expected = copy.deepcopy(state)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    snapshot = snap(state, optimizer=given or optimizer)
    assert snapshot.mode == "fence"
    with WrittenWhenAStepWaits(snapshot, path) as written:
        step()
        assert written.waiting.is_set(), "the step did not wait"
    assert_same(expected, written.loaded)
    assert has_changed(before, model)
    step()  # nothing is in flight


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "sgd_foreach": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "adamw_single": (torch.optim.AdamW, {"foreach": False}),
    "adamw_foreach": (torch.optim.AdamW, {"foreach": True}),
    "adamw_fused": (torch.optim.AdamW, {"fused": True}),
    "adam_fused": (torch.optim.Adam, {"fused": True}),
    "adam_amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adagrad": (torch.optim.Adagrad, {}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5}),
    "adafactor": (torch.optim.Adafactor, {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_waits_until_all_was_read(name, tmp_path):
    make, settings = OPTIMIZERS[name]
    model = make_model()
    optimizer = trained(model, make, lr=0.01, **settings)

    def step():
        give_gradients(model)
        optimizer.step()

    require_wait(model, optimizer, step, tmp_path / "a.pt")


def test_step_of_lbfgs_waits(tmp_path):
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)
    inputs = torch.randn(16, 8)

    def closure():
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    require_wait(model, optimizer, lambda: optimizer.step(closure), tmp_path / "a.pt")


def test_step_by_a_grad_scaler_waits(tmp_path):
    model = make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    inputs = torch.randn(16, 8)

    def step():
        optimizer.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    require_wait(model, optimizer, step, tmp_path / "a.pt")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of torch.jit
@pytest.mark.parametrize("form", ["function", "method"])
@pytest.mark.parametrize("is_compiled_before", [True, False])
def test_compiled_step_waits(form, is_compiled_before, tmp_path):
    """With dynamo's own backend: what matters is that no trace leaves the hook out."""
    model = make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01, foreach=True)
    torch._dynamo.reset()

    def step_function():
        optimizer.step()

    plain = step_function if form == "function" else optimizer.step
    compiled = torch.compile(plain, backend="eager")

    def step():
        give_gradients(model)
        compiled()

    if is_compiled_before:
        step()
    require_wait(model, optimizer, step, tmp_path / "a.pt")


def test_step_in_the_backward_pass_waits(tmp_path):
    """One optimizer for each parameter, as those do who free each gradient at once."""
    model = make_model()
    optimizers = {p: torch.optim.SGD([p], lr=0.01, momentum=0.9) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    inputs = torch.randn(16, 8)

    def step():
        model.zero_grad()
        model(inputs).square().mean().backward()

    step()
    state = {
        "model": model.state_dict(),
        "optimizers": [o.state_dict() for o in optimizers.values()],
    }
    expected = copy.deepcopy(state)
    snapshot = snap(state, optimizer=list(optimizers.values()))
    with WrittenWhenAStepWaits(snapshot, tmp_path / "a.pt") as written:
        step()
        assert written.waiting.is_set()
    assert_same(expected, written.loaded)


def test_step_of_a_second_optimizer_of_the_same_tensors_waits(tmp_path):
    model = make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01)
    second = torch.optim.SGD([model[2].bias], lr=0.5)

    def step():
        give_gradients(model)
        second.step()

    require_wait(model, optimizer, step, tmp_path / "a.pt")


def test_step_of_an_optimizer_of_other_tensors_goes_on():
    model, other = make_model(), make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01)
    independent = trained(other, torch.optim.AdamW, lr=0.01)
    snapshot = snap(training_state(model, optimizer), optimizer=optimizer)
    give_gradients(other)
    independent.step()
    check(snapshot)
    snapshot.release()


def test_forward_and_backward_go_on_and_leave_the_snapshot_whole(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    optimizer = trained(model, torch.optim.AdamW, lr=0.01)
    state = training_state(model, optimizer)
    expected = copy.deepcopy(state)
    snapshot = snap(state, optimizer=optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
    assert_same(expected, write(snapshot, tmp_path / "a.pt"))


def test_step_waits_for_every_snapshot_in_flight():
    model = make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01)
    state = training_state(model, optimizer)
    ours = slots(num_slots=2)
    first, second = (snap(state, optimizer=optimizer, into=ours) for _ in range(2))
    give_gradients(model)
    with when_a_step_waits() as waiting:
        stepping = threading.Thread(target=optimizer.step)
        stepping.start()
        waiting.wait()
        first.staged()
        check(second)
        second.staged()
        stepping.join()
    first.release()
    second.release()


def test_failed_save_blocks_no_step(tmp_path):
    model = make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    snapshot = snap(training_state(model, optimizer), optimizer=optimizer)
    give_gradients(model)
    written = WrittenWhenAStepWaits(snapshot, tmp_path / "absent" / "a.pt")
    with pytest.raises(StorageError), written:
        optimizer.step()
    assert has_changed(before, model)


def test_snapshot_that_is_forgotten_blocks_no_step():
    model = make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01)
    snap(training_state(model, optimizer), optimizer=optimizer)
    gc.collect()
    give_gradients(model)
    optimizer.step()


def test_fence_whose_making_was_interrupted_goes_in_silence(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with monkeypatch.context() as patched:
        patched.setattr(fence.threading, "Event", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fence.Fence(frozenset())
    gc.collect()
    assert unraisable == []


def test_snapshot_that_is_let_go_of_while_a_step_waits_lets_it_go_on():
    model = make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01)
    taken = [snap(training_state(model, optimizer), optimizer=optimizer)]
    give_gradients(model)
    with when_a_step_waits() as waiting:
        stepping = threading.Thread(target=optimizer.step)
        stepping.start()
        waiting.wait()
        taken.clear()
        gc.collect()
        stepping.join()


def test_wait_of_a_step_is_broken_off_by_ctrl_c(tmp_path):
    model = make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01)
    state = training_state(model, optimizer)
    expected = copy.deepcopy(state)
    snapshot = snap(state, optimizer=optimizer)
    give_gradients(model)
    main = threading.get_ident()

    def interrupt(waiting):
        waiting.wait()
        signal.pthread_kill(main, signal.SIGINT)

    with when_a_step_waits() as waiting:
        thread = threading.Thread(target=interrupt, args=(waiting,))
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        thread.join()
    assert_same(expected, write(snapshot, tmp_path / "a.pt"))
    snapshot.release()
    optimizer.step()


def test_forked_child_steps_without_waiting():
    model = make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01, foreach=False)
    snapshot = snap(training_state(model, optimizer), optimizer=optimizer)
    give_gradients(model)
    child = os.fork()
    if child == 0:
        status = 1
        torch.set_num_threads(1)  # OpenMP does not survive a fork
        signal.alarm(30)
        try:
            optimizer.step()
            snapshot.release()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    check(snapshot)
    snapshot.release()


def test_storages_of_an_optimizer_are_those_it_changes():
    model = make_model()
    optimizer = trained(model, torch.optim.AdamW, lr=0.01)
    tensors = [*model.parameters()]
    tensors += [leaf for values in optimizer.state.values() for leaf in values.values()]
    assert fence.storages_of(optimizer).keys() == {t.untyped_storage()._cdata for t in tensors}
