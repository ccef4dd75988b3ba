# SPDX-License-Identifier: Apache-2.0
"""Programs with their C, kept from one switch to the next.

To check a program and to write its C takes a switch a fifth of a second, for which the ranks of a
job wait that start one. So both are kept beside the machine code, as a pickle. A user who could
change that could change the machine code as well (`p4reduce_native.cache`).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pickle
import sys
import tempfile
import zlib
from pathlib import Path

from p4reduce_native.cache import BUILDING, Cache, cache_directory
from p4reduce_native.errors import CacheError

from p4reduce_switch.codegen_c import GeneratedC, generate
from p4reduce_switch.loader.load_program import load
from p4reduce_switch.program.ir import Program

log = logging.getLogger(__name__)

SUFFIX = ".program"
"""Of the files."""

_LEVEL = 1  # of zlib: a sixth of the bytes, in 5 ms

# What decides what is kept, beside the program itself.
_SOURCES = ("codegen_c", "loader", "program", "state", "kept_program.py")


@functools.lru_cache(maxsize=4)
def load_with_c(config: bytes | str, *, with_queues: bool) -> tuple[Program, GeneratedC]:
    """Load a program and generate its C, or return what an earlier process has kept.

    Args:
        config: p4c's JSON.
        with_queues: as of `generate`.

    Raises:
        LoadError: as `load`.
        NotNativeError: as `generate`.
    """
    try:
        cache = Cache(cache_directory(), SUFFIX)
    except CacheError:  # what needs the cache says why; compiled packages do without
        return _made(config, with_queues)
    name = _name(config, with_queues)
    found = cache.look(name)
    if found is not None:
        kept: tuple[Program, GeneratedC] = pickle.loads(zlib.decompress(found.read_bytes()))
        return kept
    made = _made(config, with_queues)
    try:
        _keep(cache, name, made)
    except (OSError, RecursionError) as error:  # a full disk; a program that is nested deeply
        log.warning("the loaded program is not kept in %s: %s", cache.directory, error)
    return made


def _made(config: bytes | str, with_queues: bool) -> tuple[Program, GeneratedC]:
    program = load(config)
    return program, generate(program, with_queues=with_queues)


def _keep(cache: Cache, name: str, made: tuple[Program, GeneratedC]) -> None:
    with tempfile.TemporaryDirectory(prefix=BUILDING, dir=cache.directory) as directory:
        built = Path(directory) / "built"
        built.write_bytes(zlib.compress(pickle.dumps(made, pickle.HIGHEST_PROTOCOL), _LEVEL))
        cache.put(name, built)


def _name(config: bytes | str, with_queues: bool) -> str:
    key = hashlib.sha256(sources_digest())
    key.update(b"queues" if with_queues else b"none")
    key.update(config.encode() if isinstance(config, str) else config)
    return f"kept-{key.hexdigest()[:32]}"


@functools.cache
def sources_digest() -> bytes:
    """Return the hash of Python's version and of the modules that load and generate."""
    digest = hashlib.sha256(sys.version.encode())
    here = Path(__file__).parent
    for name in _SOURCES:
        place = here / name
        for path in [place] if place.is_file() else sorted(place.glob("*.py")):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()
