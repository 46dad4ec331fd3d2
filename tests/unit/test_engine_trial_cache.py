import json
import os
import time
from pathlib import Path

import pytest

from gdsckpt.engine.trial_cache import TrialCache, cache_directory

KEY = {"boot_id": "a", "st_dev": 7, "findings": [["p2pdma", True]]}


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cache(tmp_path, clock):
    return TrialCache(tmp_path / "cache", clock)


def only_file(tmp_path):
    (path,) = (tmp_path / "cache").iterdir()
    return path


def test_stored_value_comes_back_in_another_object(tmp_path, cache):
    assert cache.load(KEY) is None
    cache.store(KEY, {"failure": "", "version": 1200})
    assert TrialCache(tmp_path / "cache").load(KEY) == {"failure": "", "version": 1200}


@pytest.mark.parametrize("name", KEY)
def test_another_key_is_absent(cache, name):
    cache.store(KEY, 1)
    assert cache.load({**KEY, name: "other"}) is None


def test_store_replaces(tmp_path, cache):
    cache.store(KEY, 1)
    cache.store(KEY, 2)
    assert cache.load(KEY) == 2
    assert only_file(tmp_path)  # and leaves nothing beside it


def test_files_are_private(tmp_path, cache):
    cache.store(KEY, 1)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert only_file(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("age_s", "found"), [(0, 1), (10, 1), (10.5, None), (-1, None)])
def test_age(cache, clock, age_s, found):
    cache.store(KEY, 1)
    clock.now += age_s
    assert cache.load(KEY, max_age_s=10) == found
    assert cache.load(KEY) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"[]",
        b"{}",
        b'{"format": 1}',
        b"[" * 10_000,
        b'{"format": 2, "key": {}, "stored_at": 1, "value": 1}',
        b'{"format": 1, "key": {}, "stored_at": "x", "value": 1}',
        b'{"format": 1, "key": {}, "stored_at": 1' + b"0" * 400 + b', "value": 1}',
    ],
)
def test_damaged_file_is_absent_and_is_replaced(tmp_path, cache, content):
    cache.store(KEY, 1)
    only_file(tmp_path).write_bytes(content)
    assert cache.load(KEY) is None
    cache.store(KEY, 2)
    assert cache.load(KEY) == 2


def test_file_that_was_cut_short_is_absent(tmp_path, cache):
    cache.store(KEY, 1)
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    assert cache.load(KEY) is None


def test_file_of_another_key_under_the_name_is_absent(tmp_path, cache):
    cache.store(KEY, 1)
    path = only_file(tmp_path)
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "key": {**KEY, "boot_id": "b"}}))
    assert cache.load(KEY) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_file_that_others_may_touch_is_absent(tmp_path, cache, mode):
    cache.store(KEY, 1)
    only_file(tmp_path).chmod(mode)
    assert cache.load(KEY) is None


def test_file_of_another_user_is_absent(tmp_path, cache, monkeypatch):
    cache.store(KEY, 1)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.load(KEY) is None


def test_link_is_not_followed(tmp_path, cache):
    cache.store(KEY, 1)
    path = only_file(tmp_path)
    target = path.rename(tmp_path / "elsewhere")
    path.symlink_to(target)
    assert cache.load(KEY) is None


def test_pipe_in_the_place_of_a_file_does_not_hang(tmp_path, cache):
    cache.store(KEY, 1)
    path = only_file(tmp_path)
    path.unlink()
    os.mkfifo(path, 0o600)
    assert cache.load(KEY) is None


@pytest.mark.parametrize("place", ["/proc/self/cache", "/dev/null/cache"])
def test_place_that_cannot_be_written_keeps_nothing(place):
    cache = TrialCache(Path(place))
    cache.store(KEY, 1)
    assert cache.load(KEY) is None


def test_no_place_keeps_nothing():
    cache = TrialCache(None)
    cache.store(KEY, 1)
    assert cache.load(KEY) is None


def test_what_was_stored_long_ago_goes(tmp_path, cache, clock):
    cache.store(KEY, 1)
    path = only_file(tmp_path)
    clock.now = time.time()
    os.utime(path, (clock.now, clock.now - 31 * 86400))
    cache.store({**KEY, "boot_id": "b"}, 2)
    assert not path.exists()
    assert cache.load({**KEY, "boot_id": "b"}) == 2


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/gdsckpt/trials"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/gdsckpt/trials"),
        ({"HOME": "/h"}, "/h/.cache/gdsckpt/trials"),
    ],
)
def test_cache_directory(environ, directory):
    assert cache_directory(environ) == Path(directory)


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_cache_directory_without_a_home(environ):
    assert cache_directory(environ) is None
