# SPDX-License-Identifier: Apache-2.0
"""A program that was loaded once is kept for the next switch, and only where nobody else writes."""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from p4reduce_native.cache import Cache
from p4reduce_switch import kept_program
from p4reduce_switch.kept_program import SUFFIX, load_with_c
from p4reduce_switch.loader.load_program import load
from p4reduce_switch.native_pipeline import NativePipeline
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.program.ir import Program
from p4reduce_switch.program.load_error import LoadError
from pipeline_programs import config

TABLES = config("tables")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setenv("P4REDUCE_CACHE_DIR", str(directory))
    another_process()
    return directory


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What has been loaded and generated, and not been kept."""
    configs: list[bytes] = []

    def count(text: bytes) -> Program:
        configs.append(text)
        return load(text)

    monkeypatch.setattr(kept_program, "load", count)
    return configs


def another_process() -> None:
    """Forget what this process has loaded."""
    load_with_c.cache_clear()


def test_another_process_gets_the_same_without_making_it(cache: Path, made: list[bytes]) -> None:
    _, first = load_with_c(TABLES, with_queues=False)
    another_process()
    _, again = load_with_c(TABLES, with_queues=False)
    assert made == [TABLES]
    assert (again.source, again.objects) == (first.source, first.objects)
    assert [path.suffix for path in sorted(cache.iterdir())] == [SUFFIX, ".sha256"]


def test_what_decides_the_c_decides_which_one(cache: Path, made: list[bytes]) -> None:
    without, with_queues = (load_with_c(TABLES, with_queues=which)[1] for which in (False, True))
    assert (without.queued, with_queues.queued) == (False, True)
    load_with_c(config("state"), with_queues=False)
    another_process()
    assert load_with_c(TABLES, with_queues=True)[1].source == with_queues.source
    assert made == [TABLES, TABLES, config("state")]


def test_other_modules_make_it_anew(
    cache: Path, made: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_with_c(TABLES, with_queues=False)
    another_process()
    monkeypatch.setattr(kept_program, "sources_digest", lambda: b"of another version")
    load_with_c(TABLES, with_queues=False)
    assert made == [TABLES, TABLES]


def test_a_kept_program_runs_frames(cache: Path) -> None:
    load_with_c(TABLES, with_queues=False)
    another_process()
    kept, wanted = NativePipeline(TABLES), Pipeline(TABLES)
    assert set(kept.tables) == set(wanted.tables)
    for frame in (bytes(64), bytes(range(64)), b"\xff" * 64, b""):
        assert kept.process(1, frame) == wanted.process(1, frame)


def test_a_damaged_file_is_made_anew(cache: Path, made: list[bytes]) -> None:
    load_with_c(TABLES, with_queues=False)
    [file] = cache.glob(f"*{SUFFIX}")
    file.write_bytes(file.read_bytes()[:-1])
    for _ in range(2):
        another_process()
        load_with_c(TABLES, with_queues=False)
    assert made == [TABLES, TABLES]


def test_where_others_may_write_nothing_is_read(cache: Path, made: list[bytes]) -> None:
    class Stranger:
        def __reduce__(self) -> tuple[Callable[[list[bytes], bytes], None], tuple[object, ...]]:
            return list.append, (made, b"a stranger's code has run")

    load_with_c(TABLES, with_queues=False)
    [file] = cache.glob(f"*{SUFFIX}")
    file.write_bytes(zlib.compress(pickle.dumps(Stranger())))
    file.with_suffix(".sha256").write_text(hashlib.sha256(file.read_bytes()).hexdigest())
    cache.chmod(0o777)
    another_process()
    assert load_with_c(TABLES, with_queues=False)[1].source
    assert made == [TABLES, TABLES]


def test_a_full_disk_keeps_nothing_and_stops_nobody(
    cache: Path,
    made: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Cache, "put", refuse)
    assert load_with_c(TABLES, with_queues=False)[1].source
    assert f"not kept in {cache}" in caplog.text
    assert list(cache.iterdir()) == []


def test_what_is_refused_is_refused_again(cache: Path) -> None:
    for _ in range(2):
        another_process()
        with pytest.raises(LoadError, match="field_list"):
            load_with_c(config("refused/field_list"), with_queues=False)
    assert list(cache.iterdir()) == []
