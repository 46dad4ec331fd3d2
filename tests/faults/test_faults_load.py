"""A file call of a load or verification fails, is cut short or repeated."""

import errno

import pytest

LOADS = {
    "load": "result['n'] = which(gdsckpt.load(path))",
    "into": "into = value(0); gdsckpt.load(path, into=into); result['n'] = which(into)",
    "keys": "result['n'] = int(gdsckpt.load(path, keys='half')['half'][-1])",
    "verify": "assert gdsckpt.verify(path).ok is True; result['n'] = 2",
    "stock": "result['n'] = which(gdsckpt.load(path, weights_only=False))",
}


@pytest.fixture
def saved(faults, tmp_path):
    directory = tmp_path / "here"
    directory.mkdir()
    path = directory / "state.pt"
    save = "gdsckpt.save(value(2), path, config={'chunk_bytes': '64KiB'})"
    assert faults.run(save, path=path).error is None
    return path


def cold(path):
    """Drop a file's pages, so that a load reads it by direct I/O."""
    return f"""
fd = os.open({str(path)!r}, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
os.close(fd)
"""


@pytest.mark.parametrize("how", LOADS)
def test_load_eio_at_every_call_raises(faults, saved, how):
    calls = [op for op, _ in faults.calls(LOADS[how], saved.parent, path=saved)]
    assert set(calls) == {"open", "odirect", "pread"}
    assert calls.count("open") == 1
    for op in ("open", "pread"):
        for n in range(1, calls.count(op) + 1):
            outcome = faults.run(LOADS[how], f"{op}:{n}:EIO", saved.parent, path=saved)
            assert len(outcome.fired) == 1
            assert outcome.error is not None, (op, n)
            assert outcome.error["type"] == "StorageError", outcome.error["trace"]
            fields = outcome.error["fields"]
            assert (fields["op"], fields["path"], fields["errno"]) == (op, str(saved), errno.EIO)
            assert outcome.fds_after == outcome.fds_before


@pytest.mark.parametrize("how", LOADS)
@pytest.mark.parametrize("is_cold", [True, False])
def test_load_short_and_interrupted_reads_are_continued(faults, saved, how, is_cold):
    code = (cold(saved) if is_cold else "") + LOADS[how]
    num_calls = [op for op, _ in faults.calls(code, saved.parent, path=saved)].count("pread")
    rules = [
        "pread:*:short=4096",
        "pread:*:short=1000",
        "pread:1:EINTR;pread:3:EINTR;pread:6:EINTR",
    ]
    rules += [f"pread:{n}:short=1" for n in range(1, num_calls + 1)]
    for rule in rules:
        outcome = faults.run(code, rule, saved.parent, path=saved)
        assert outcome.error is None, outcome.error["trace"]
        assert len(outcome.fired) >= 1
        assert outcome.result["n"] == 2


@pytest.mark.parametrize("how", LOADS)
@pytest.mark.parametrize(
    "rule", ["odirect:1:EINVAL", "odirect:1:EACCES", "dpread:1:EINVAL", "dpread:*:EOPNOTSUPP"]
)
def test_load_without_direct_io_is_buffered(faults, saved, how, rule):
    outcome = faults.run(cold(saved) + LOADS[how], rule, saved.parent, path=saved)
    assert outcome.error is None, outcome.error["trace"]
    assert len(outcome.fired) >= 1
    assert (outcome.result["n"], outcome.warnings) == (2, [])


@pytest.mark.parametrize("how", LOADS)
def test_load_of_a_file_that_ends_early_raises_short_transfer(faults, saved, how):
    num_calls = [op for op, _ in faults.calls(LOADS[how], saved.parent, path=saved)].count("pread")
    for n in range(1, num_calls + 1):
        outcome = faults.run(LOADS[how], f"pread:{n}+:short=0", saved.parent, path=saved)
        if how == "verify":
            assert outcome.error["type"] in ("ShortTransferError", "AssertionError")
            continue
        assert outcome.error["type"] == "ShortTransferError", outcome.error["trace"]
        fields = outcome.error["fields"]
        assert (fields["op"], fields["path"]) == ("pread", str(saved))
        assert fields["actual_bytes"] < fields["expected_bytes"]
        assert outcome.fds_after == outcome.fds_before


def test_load_with_hardly_any_descriptors_works_or_raises_what_says_so(faults, tmp_path):
    code = """
import errno, resource
path = Path(path)
gdsckpt.save(value(3), path)
gdsckpt.load(path)  # imports what a first load needs
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
# The limit is of numbers: with gaps between them, its next one may leave room for several more.
highest = max(map(int, os.listdir("/proc/self/fd")))
while (filler := os.dup(0)) <= highest:
    pass
result["outcomes"] = []
for spare in range(12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (filler + 1 + spare, most))
    try:
        result["outcomes"].append(which(gdsckpt.load(path)))
    except gdsckpt.errors.StorageError as error:
        assert error.errno == errno.EMFILE, error
        result["outcomes"].append("refused")
"""
    outcome = faults.run(code, path=str(tmp_path / "a.pt"))
    assert outcome.error is None, outcome.error["trace"]
    assert outcome.result["outcomes"][0] == "refused"
    assert outcome.result["outcomes"][-1] == 3
