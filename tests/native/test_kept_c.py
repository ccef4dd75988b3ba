# SPDX-License-Identifier: Apache-2.0
"""The C of a large program is generated once, and found in the cache by every later start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from p4reduce_switch.codegen_c.generate import generate
from p4reduce_switch.loader.load_program import load
from p4reduce_switch.native.kept import generated_for

COMPILED = Path(__file__).parents[2] / "p4src" / "compiled"
CONFIG = (COMPILED / "p4reduce64.json").read_bytes()
GENERATE = "p4reduce_switch.codegen_c.generate.generate"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setenv("P4REDUCE_CACHE_DIR", str(directory))
    return directory


def start(config: bytes = CONFIG, *, with_queues: bool = False) -> Any:
    return generated_for(config, load(config), with_queues=with_queues)


def no_generator(*_: object, **__: object) -> None:
    raise AssertionError("it is generated again")


def test_it_is_generated_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generated = generate(load(CONFIG), with_queues=False)
    assert start() == generated
    [kept] = cache.glob("generated-*.json")
    monkeypatch.setattr(GENERATE, no_generator)
    assert start() == generated
    assert list(cache.glob("generated-*.json")) == [kept]
    with pytest.raises(AssertionError, match="generated again"):
        start(with_queues=True)  # which is other C
    with pytest.raises(AssertionError, match="generated again"):
        start(CONFIG + b"\n")


def test_events_and_objects_are_kept(cache: Path) -> None:
    """A program with queues, log messages and digests has some of everything."""
    config = (COMPILED.parents[1] / "tests/switch/programs/messages.json").read_bytes()
    large = config + b" " * 200_000
    generated = generate(load(large), with_queues=True)
    assert generated.events
    assert generated.queued
    start(large, with_queues=True)
    assert start(large, with_queues=True) == generated


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None], ids=["empty", "other", "cut off"])
def test_a_damaged_file_is_generated_again(cache: Path, damage: bytes | None) -> None:
    generated = start()
    [kept] = cache.glob("generated-*.json")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] if damage is None else damage)
    assert start() == generated
    assert kept.read_bytes() == whole


def test_it_keeps_the_last_programs_only(cache: Path) -> None:
    program = load(CONFIG)
    for number in range(34):
        generated_for(CONFIG + b"\n" * number, program, with_queues=False)
    assert len(list(cache.glob("generated-*.json"))) == 32


def test_a_small_program_is_not_kept(cache: Path) -> None:
    start((COMPILED.parents[1] / "tests/switch/programs/messages.json").read_bytes())
    assert not cache.exists()


def test_a_cache_that_others_may_write_to_is_not_read(cache: Path) -> None:
    generated = start()
    [kept] = cache.glob("generated-*.json")
    kept.write_bytes(b"")
    cache.chmod(0o777)
    assert start() == generated
    assert kept.read_bytes() == b""
