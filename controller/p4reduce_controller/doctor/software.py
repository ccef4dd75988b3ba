# SPDX-License-Identifier: Apache-2.0
"""Examines Python packages, and the programs that p4reduce can use."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata

from p4reduce_controller.doctor.finding import Finding, failure, note, ok
from p4reduce_controller.fabric.compiled_program import compiled_files

SECTION = "Software"
_ANSWER_TIMEOUT = 10.0  # seconds; BMv2 is slow to load on a busy machine


@dataclass(frozen=True)
class Tool:
    """A program that may be installed."""

    name: str
    command: tuple[str, ...]
    purpose: str
    cure: str


TOOLS = (
    Tool(
        "BMv2",
        ("simple_switch_grpc", "--version"),
        "a switch that needs no Python; the embedded switch does without",
        "Install p4lang-bmv2 (docs/bmv2.md).",
    ),
    Tool(
        "p4c",
        ("p4c-bm2-ss", "--version"),
        "only changing the P4 program takes it",
        "Install p4lang-p4c (docs/bmv2.md).",
    ),
    Tool(
        "Mininet",
        ("mn", "--version"),
        "hosts with links of their own, NET=mininet",
        "apt-get install mininet",
    ),
    Tool(
        "ip",
        ("ip", "-Version"),
        "BMv2's and Mininet's interfaces are made with it",
        "apt-get install iproute2",
    ),
    Tool(
        "ethtool",
        ("ethtool", "--version"),
        "switches off what keeps BMv2 from seeing frames",
        "apt-get install ethtool",
    ),
    Tool(
        "openssl",
        ("openssl", "version"),
        "tools/make-certificates uses it",
        "apt-get install openssl",
    ),
    Tool("tshark", ("tshark", "--version"), "reads captures", "apt-get install tshark"),
)


def examine() -> Iterator[Finding]:
    """Examine which packages and programs are installed."""
    yield ok(SECTION, "Python", platform.python_version())
    yield _packages()
    yield _program()
    with ThreadPoolExecutor() as pool:  # Mininet and tshark take their time to say who they are
        yield from pool.map(_tool, TOOLS)


def _packages() -> Finding:
    name = "packages"
    try:
        wanted = metadata.requires("p4reduce") or []
    except metadata.PackageNotFoundError:
        return note(
            SECTION,
            name,
            "p4reduce is imported from a folder, not installed",
            "Run make setup, or pip install in the checkout, to have the requirements checked.",
        )
    wrong = [text for text in map(_unmet, wanted) if text]
    if wrong:
        return failure(SECTION, name, "; ".join(wrong), "Run make setup, or pip install again.")
    return ok(SECTION, name, f"p4reduce {metadata.version('p4reduce')} and all that it needs")


def _unmet(requirement: str) -> str:
    """Say what is wrong about one requirement, like `grpcio>=1.60; extra == "x"`; or nothing."""
    text, _, marker = requirement.partition(";")
    if "extra" in marker:
        return ""
    match = re.match(r"\s*([\w.-]+)", text)
    if match is None:
        return ""
    package = match[1]
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return f"{package} is not installed"
    for operator, bound in re.findall(r"(>=|<=|==|<|>)\s*([\d.]+)", text):
        if not _fits(_numbers(version), operator, _numbers(bound)):
            return f"{package} is {version}, which is not {operator}{bound}"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[\d.]+", version)
    return tuple(int(part) for part in found[0].split(".") if part) if found else ()


def _fits(version: tuple[int, ...], operator: str, bound: tuple[int, ...]) -> bool:
    width = max(len(version), len(bound))
    ours, theirs = (part + (0,) * (width - len(part)) for part in (version, bound))
    return {
        ">=": ours >= theirs,
        "<=": ours <= theirs,
        "==": ours == theirs,
        "<": ours < theirs,
        ">": ours > theirs,
    }[operator]


def _program() -> Finding:
    name = "P4 program"
    try:
        json, _ = compiled_files()
    except FileNotFoundError as error:
        return failure(SECTION, name, str(error), "Install p4reduce again, or run make p4.")
    return ok(SECTION, name, f"compiled, {json}")


def _tool(tool: Tool) -> Finding:
    path = shutil.which(tool.command[0])
    if path is None:
        return note(
            SECTION, tool.name, f"{tool.command[0]} is not on PATH; {tool.purpose}", tool.cure
        )
    try:
        answer = subprocess.run(
            tool.command, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return note(SECTION, tool.name, f"{path} does not run: {error}", tool.cure)
    if answer.returncode < 0 or answer.returncode in (126, 127):
        text = (answer.stderr or answer.stdout).strip() or f"exit code {answer.returncode}"
        return note(SECTION, tool.name, f"{path} does not run: {text[:200]}", tool.cure)
    found = re.search(r"\d+(\.\d+)+", answer.stdout + answer.stderr)
    return ok(SECTION, tool.name, f"{found[0] if found else 'of unknown version'}, {path}")
