# SPDX-License-Identifier: Apache-2.0
"""Check the words of identifiers in Python, C and P4: `make lint`.

One concept has one name, the one that the field uses. The check refuses retired words in names that
the code defines, class names that two modules of the packages share, event handlers without `on_`,
and calls that unpack a literal tuple to keep a line short.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("common/", "native/", "worker/", "controller/", "switch/", "lab/")
FOREIGN = ("bench/bmv2/one_lane/", "tests/switch/programs/")
GENERATED = re.compile(r"_pb2(_grpc)?\.py$")

RETIRED = {
    "attendance": "presence",
    "attendant": "proxy",
    "attendants": "proxies",
    "bell": "doorbell",
    "doorkeeper": "admission",
    "farewell": "linger",
    "hurry": "expire_timers, wake",
    "ledger": "call_log",
    "nap": "backoff",
    "naps": "backoff",
    "poke": "keepalive",
    "roll": "negotiation",
    "seat": "member",
    "seats": "members",
    "seeker": "search",
    "stir": "wake",
    "stirred": "wakeup",
}
"""Words of identifiers, and what to write instead."""

RETIRED_NAMES = {
    "be_patient": "use_local_floor",
    "hear_from_elsewhere": "on_path_challenge",
    "hear_out": "drain",
    "let_in": "accept",
    "let_out": "release",
    "look_for_news": "poll_events",
    "stay_for_others": "linger",
    "take_news": "take_events",
    "take_turn": "run_iteration",
    "under_way": "in_flight",
}
"""Whole names, with or without an underscore before them."""

HANDLERS = {
    "halted",
    "hold",
    "interrupted",
    "lost",
    "moved",
    "moved_to",
    "switch_lost",
    "unsettled",
}
"""Names of events. A method that handles one is called `on_<event>`."""

SHARED = {
    "Hook": "a page promises both, for Lightning and for Transformers",
    "Settings": "a page promises it",
    "State": "a page promises it",
    "Statistics": "pages promise both",
}
"""Class names that several modules of the packages may have, and why."""

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+")
TOKEN = re.compile(
    r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*", re.DOTALL
)

Finding = tuple[int, str]


def sources(*suffixes: str) -> Iterator[tuple[str, str]]:
    """Name and text of each file of this repository with one of the suffixes."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in sorted(filter(None, names.split("\0"))):
        path = ROOT / name
        if name.endswith(suffixes) and not name.startswith(FOREIGN) and path.is_file():
            yield name, path.read_text(encoding="utf-8")


def complaint(name: str) -> str:
    """Return what is wrong with an identifier, or ""."""
    bare = name.strip("_").lower()
    if better := RETIRED_NAMES.get(bare):
        return f"{name}: write {better}"
    for word in WORD.findall(name):
        if better := RETIRED.get(word.lower()):
            return f"{name}: '{word}' is retired, write {better}"
    return ""


def defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg(arg=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def unpacks_literal(node: ast.AST) -> bool:
    """Whether an argument or element is a literal tuple or list behind a star."""
    return isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List)


def handles_event(method: ast.FunctionDef) -> bool:
    """Whether a method is called as an event is, returns nothing, and is no property."""
    if method.name not in HANDLERS or method.returns is None:
        return False
    is_property = any("property" in ast.unparse(each) for each in method.decorator_list)
    return ast.unparse(method.returns) == "None" and not is_property


def in_python(name: str, tree: ast.Module) -> Iterator[Finding]:
    """What is wrong in a module."""
    for line, each in defined(tree):
        if found := complaint(each):
            yield line, found
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
                if any(map(unpacks_literal, parts)):
                    yield node.lineno, "unpacks a literal: name the arguments, or shorten the line"
            case ast.ClassDef(body=body) if name.startswith(PACKAGES):
                for method in body:
                    if isinstance(method, ast.FunctionDef) and handles_event(method):
                        text = f"{method.name} handles an event: write on_{method.name}"
                        yield method.lineno, text


def in_c(text: str) -> Iterator[Finding]:
    """What is wrong in C or P4."""
    for match in TOKEN.finditer(text):
        token = match.group()
        if (token[0].isalpha() or token[0] == "_") and (found := complaint(token)):
            yield text.count("\n", 0, match.start()) + 1, found


def main() -> int:
    """Print findings; 1 if there are any."""
    wrong = 0
    classes: dict[str, set[str]] = defaultdict(set)

    def report(name: str, findings: Iterator[Finding]) -> None:
        nonlocal wrong
        for line, text in sorted(set(findings)):
            wrong += 1
            print(f"{name}:{line}: {text}")

    for name, text in sources(".py"):
        if GENERATED.search(name):
            continue
        tree = ast.parse(text)
        report(name, in_python(name, tree))
        if name.startswith(PACKAGES):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    classes[node.name.lstrip("_")].add(name)
    for name, text in sources(".c", ".h", ".p4"):
        report(name, in_c(text))
    for each, where in sorted(classes.items()):
        if len(where) > 1 and each not in SHARED:
            wrong += 1
            print(f"{', '.join(sorted(where))}: each has a class {each}: prefix its owner")
    print(f"{wrong} findings" if wrong else "words of identifiers: in order")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
