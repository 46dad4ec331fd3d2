import pytest

from gdsckpt.checkpointer.memory_limit import staging_limit

GiB = 1 << 30


@pytest.fixture
def machine(tmp_path):
    def make(total_bytes, **cgroup):
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/meminfo").write_text(
            f"MemTotal:       {total_bytes // 1024} kB\nMemFree:  1 kB\n"
        )
        for name, text in cgroup.items():
            path = tmp_path / "sys/fs/cgroup" / name.replace("__", "/").replace("_max", ".max")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def test_a_setting_is_taken_as_it_is(machine):
    assert staging_limit(7 * GiB, {"LOCAL_WORLD_SIZE": "4"}, files=machine(64 * GiB)) == 7 * GiB


def test_default_is_a_quarter_of_the_machine(machine):
    assert staging_limit(0, {}, files=machine(64 * GiB)) == 16 * GiB


def test_default_is_shared_by_the_processes_of_the_job(machine):
    assert staging_limit(0, {"LOCAL_WORLD_SIZE": "8"}, files=machine(64 * GiB)) == 2 * GiB


@pytest.mark.parametrize("text", ["", "0", "many", "-2"])
def test_number_of_processes_that_is_none_counts_as_one(machine, text):
    assert staging_limit(0, {"LOCAL_WORLD_SIZE": text}, files=machine(64 * GiB)) == 16 * GiB


@pytest.mark.parametrize(("text", "limit"), [("8589934592\n", 2 * GiB), ("max\n", 16 * GiB)])
def test_default_heeds_the_limit_of_the_container(machine, text, limit):
    assert staging_limit(0, {}, files=machine(64 * GiB, memory_max=text)) == limit
