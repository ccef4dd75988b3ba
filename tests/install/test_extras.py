# SPDX-License-Identifier: Apache-2.0
"""The distribution's base is the worker library, and commands say which extra they lack."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

# Makes packages look as if they were not installed, then does as `python -m` or an import does.
_WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = ["command", *{arguments!r}]
{statement}
"""


def without(missing: set[str], statement: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = _WITHOUT.format(missing=missing, arguments=list(arguments), statement=statement)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )


def test_the_base_is_what_a_worker_needs() -> None:
    base = [Requirement(text) for text in requires("p4reduce") or ()]
    names = {r.name for r in base if r.marker is None}
    assert names == {"numpy", "scapy", "grpcio", "protobuf"}
    [protobuf] = [r for r in base if r.marker is None and r.name == "protobuf"]
    assert protobuf.specifier.contains("3.20.3")
    assert protobuf.specifier.contains("7.36.2")


def test_a_worker_imports_nothing_else() -> None:
    others = {"click", "rich", "p4", "p4runtime_sh", "google.rpc", "IPython", "sklearn"}
    done = without(
        others,
        "import p4reduce\n"
        "for name in p4reduce.__all__: getattr(p4reduce, name)\n"
        "import p4reduce.compression, p4reduce.control.client",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("missing", "command", "arguments", "says"),
    [
        ("click", "switch", ["--help"], "p4reduce-switch needs the package 'click', which is not "
         "installed here: pip install 'p4reduce[switch]'"),
        ("p4", "simple_switch_grpc", ["--no-p4"], "p4reduce-simple-switch-grpc needs the package "
         "'p4', which is not installed here: pip install 'p4reduce[switch]'"),
        ("rich", "controller", ["--help"], "p4reduce-controller needs the package 'rich', which "
         "is not installed here: pip install 'p4reduce[controller]'"),
        ("click", "lab", ["--help"], "p4reduce-lab needs the package 'click', which is not "
         "installed here: pip install 'p4reduce[lab]'"),
        ("sklearn", "lab", ["run", "--ranks", "1"], "p4reduce-lab needs the package 'sklearn', "
         "which is not installed here: pip install 'p4reduce[demo]'"),
        ("p4runtime_sh", "controller", ["shell"], "p4reduce-controller needs the package "
         "'p4runtime_sh', which is not installed here: pip install 'p4reduce[shell]'"),
    ],
)  # fmt: skip
def test_commands_name_the_extra(
    missing: str, command: str, arguments: list[str], says: str
) -> None:
    done = without(
        {missing}, f"from p4reduce_common.commands import {command}\n{command}()", *arguments
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == says


def test_messages_of_p4runtime_are_built_from_their_descriptors() -> None:
    """As they have to be where protobuf does not take what `p4runtime` was generated to."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import p4reduce_switch\n"
            "from p4.v1 import p4runtime_pb2 as p4\n"
            "from p4.config.v1 import p4info_pb2\n"
            "from p4.v1 import p4runtime_pb2_grpc\n"
            "request = p4.WriteRequest(device_id=3)\n"
            "update = request.updates.add(type=p4.Update.INSERT)\n"
            "update.entity.table_entry.table_id = 5\n"
            "assert p4.WriteRequest.FromString(request.SerializeToString()) == request\n"
            "assert p4.Update.Type.Name(1) == 'INSERT'\n"
            "print(p4.__spec__.loader.__class__.__module__)",
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.strip() == "p4reduce_common.p4runtime_messages", done.stderr
