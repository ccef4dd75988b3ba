# SPDX-License-Identifier: Apache-2.0
"""The generated C of a large program, kept in the cache of compiled files.

To generate it takes a quarter of a second of a core, which every start of a switch would pay. The
key has the program, the modules that make C of it, and this one, which lays out the file. So what
is found is what would be generated.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from p4reduce_native.cache import BUILDING, Cache, cache_directory
from p4reduce_native.errors import CacheError

from p4reduce_switch.codegen_c.generated import GeneratedC, PythonEvent
from p4reduce_switch.program.ir import Program

_LARGE = 200_000  # bytes of p4c's JSON; C for smaller programs is generated as fast as it is read
_MOST_FILES = 32
_PACKAGE = Path(__file__).parents[1]
_MAKERS = ("codegen_c", "loader", "program", "state")  # folders of the modules that decide the C


def generated_for(config: bytes | str, program: Program, *, with_queues: bool) -> GeneratedC:
    """Return the C of a program, from the cache if it is there.

    Args:
        config: p4c's JSON.
        program: what was loaded from it.
        with_queues: as for `generate`.

    Raises:
        NotNativeError: as `generate`.
    """
    data = config.encode() if isinstance(config, str) else config
    if len(data) < _LARGE:
        return _generate(program, with_queues)
    try:
        cache = Cache(cache_directory(), ".json", _MOST_FILES)
    except CacheError:
        return _generate(program, with_queues)  # the compiler says what is wrong with it
    name = f"generated-{_key(data, with_queues)}"
    generated = _read(cache, name)
    if generated is None:
        generated = _generate(program, with_queues)
        with contextlib.suppress(OSError):  # then it is generated again
            _write(cache, name, generated)
    return generated


def _generate(program: Program, with_queues: bool) -> GeneratedC:
    from p4reduce_switch.codegen_c.generate import generate

    return generate(program, with_queues=with_queues)


def _key(data: bytes, with_queues: bool) -> str:
    parts = (_makers(), hashlib.sha256(data).digest(), bytes([with_queues]))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


@functools.cache
def _makers() -> bytes:
    digest = hashlib.sha256()
    makers = (path for folder in _MAKERS for path in sorted((_PACKAGE / folder).glob("*.py")))
    for path in (Path(__file__), *makers):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


def _read(cache: Cache, name: str) -> GeneratedC | None:
    """Return what is kept, unless it is missing or damaged."""
    path = cache.look(name)
    if path is None:
        return None
    try:
        kept: dict[str, Any] = json.loads(path.read_bytes())
    except OSError:  # another process has just removed it
        return None
    return GeneratedC(
        kept["source"],
        {(kind, name): number for kind, name, number in kept["objects"]},
        tuple(
            PythonEvent(kind, text, tuple((words, signed) for words, signed in values))
            for kind, text, values in kept["events"]
        ),
        kept["queued"],
    )


def _write(cache: Cache, name: str, generated: GeneratedC) -> None:
    kept = {
        "source": generated.source,
        "objects": [[*where, number] for where, number in generated.objects.items()],
        "events": [[event.kind, event.text, event.values] for event in generated.events],
        "queued": generated.queued,
    }
    with tempfile.TemporaryDirectory(prefix=BUILDING, dir=cache.directory) as directory:
        built = Path(directory) / "built.json"
        built.write_text(json.dumps(kept))
        cache.put(name, built)
