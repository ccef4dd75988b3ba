# SPDX-License-Identifier: Apache-2.0
"""The examples in the worker library's docstrings do what they say."""

from __future__ import annotations

import doctest
import inspect
import textwrap

import numpy as np
import p4reduce
import p4reduce.wire.dissect
import pytest
from worker_system import System


def test_examples_of_the_wire_format() -> None:
    results = doctest.testmod(p4reduce.wire.dissect)
    assert results.attempted > 0
    assert results.failed == 0


def test_example_of_the_package(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing but what torchrun and the lab set in the environment."""
    example = inspect.cleandoc(p4reduce.__doc__ or "").split("\n\n    ", 1)[1]
    code = textwrap.dedent("    " + example.split("\n\nSee ")[0])
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "P4REDUCE_CONTROLLER": system.controller,
        "P4REDUCE_INTERFACE": system.interface(1).replace("port1", "port{port}"),
        "P4REDUCE_JOB": system.new_job(),
    }.items():
        monkeypatch.setenv(name, value)
    names: dict[str, object] = {}
    exec(code, names)
    assert np.array_equal(names["total"], np.zeros(1000, np.float32))  # type: ignore[arg-type]


def test_public_names_are_documented() -> None:
    for name in p4reduce.__all__:
        public = getattr(p4reduce, name)
        if inspect.isclass(public) or inspect.isfunction(public):
            # Its own words: not those of a base class, nor the signature that a dataclass gets.
            words = vars(public).get("__doc__") if inspect.isclass(public) else public.__doc__
            assert words, name
            assert not words.startswith(f"{name}("), name
    for name, member in inspect.getmembers(p4reduce.Communicator):
        if not name.startswith("_"):
            assert inspect.getdoc(member), name
