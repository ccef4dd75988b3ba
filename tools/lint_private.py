# SPDX-License-Identifier: Apache-2.0
"""Find where tests, model and benchmarks reach for private names of ours: `make lint`.

They go through what is public. Where that makes no sense, the line, or the one before it, has a
comment that says why: `# private: …`.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("common", "native", "worker", "controller", "switch", "lab")
READERS = ("tests", "model", "bench")
BY_NAME = {"setattr", "getattr", "delattr", "hasattr", "object"}  # `mock.patch.object`
OTHERS = {"_exit", "_execute_child", "_fields_", "_name", "_replace"}
"""Names that the standard library documents, or has for subclasses."""

WHY = "# private: "

Names = dict[str, set[str]]


def is_private(name: str) -> bool:
    """Whether a name begins with an underscore, and is none of Python's own."""
    return name.startswith("_") and not name.endswith("__") and name not in OTHERS | {"_"}


def sources(folders: tuple[str, ...]) -> Iterator[tuple[Path, ast.Module]]:
    """Each Python file of some folders, read."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text())


def own_names(node: ast.AST) -> set[str]:
    """The private names that a module or class defines."""
    found: set[str] = set()
    for each in ast.walk(node):
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
    return set(filter(is_private, found))


def base_names(node: ast.ClassDef) -> set[str]:
    """The names of a class's bases, without modules."""
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}


def class_names() -> Names:
    """What each class of the packages has of private names, its bases' among them."""
    own: Names = defaultdict(set)
    bases: Names = defaultdict(set)
    for _, module in sources(PACKAGES):
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                own[node.name] |= own_names(node)
                bases[node.name] |= base_names(node)

    def whole(name: str, seen: frozenset[str]) -> set[str]:
        further = (whole(base, seen | {base}) for base in bases[name] - seen if base in own)
        return own[name].union(*further)

    return {name: whole(name, frozenset({name})) for name in list(own)}


def findings(module: ast.Module, known: set[str], classes: Names) -> Iterator[tuple[int, str]]:
    """Each line of a module that reaches for a private name, and what it does."""
    imported = {
        each.asname or each.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("p4reduce")
        for each in node.names
    }
    classes = {name: classes[name] for name in imported & classes.keys()}
    for node in ast.walk(module):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass  # of a class of ours: see below
            case ast.Attribute(attr=name) if name in known:
                yield node.lineno, f"uses {ast.unparse(node)}"
            case ast.ImportFrom(module=str(of), names=names) if of.startswith("p4reduce"):
                for name in (each.name for each in names if is_private(each.name)):
                    yield node.lineno, f"imports {name} of {of}"
            case ast.Call(func=ast.Attribute(attr=call) | ast.Name(id=call), args=args):
                for arg in args if call in BY_NAME else ():
                    match arg:
                        case ast.Constant(value=str(text)) if is_private(text.split(".")[-1]):
                            yield node.lineno, f"{call} of {text!r}"
            case ast.Dict(keys=keys):  # as of `mock.patch.dict`
                for key in keys:
                    if isinstance(key, ast.Constant) and key.value in known:
                        yield key.lineno, f"names {key.value}"
            case ast.ClassDef():
                yield from overridden(node, classes)


def overridden(node: ast.ClassDef, classes: Names) -> Iterator[tuple[int, str]]:
    """Where a class uses or replaces what a base in the packages keeps to itself."""
    theirs = set().union(*(classes.get(base, set()) for base in base_names(node)))
    for each in ast.walk(node):
        match each:
            case ast.FunctionDef(name=name) if name in theirs:
                yield each.lineno, f"{node.name} overrides {name}"
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in theirs:
                yield each.lineno, f"{node.name} uses self.{name} of its base"


def main() -> int:
    """Print what was found; return the exit code."""
    classes = class_names()
    known: set[str] = set()
    for _, module in sources((*PACKAGES, *READERS)):
        known |= own_names(module)
    wrong = 0
    for path, module in sources(READERS):
        lines = path.read_text().splitlines()
        for number, what in sorted(set(findings(module, known, classes))):
            if any(WHY in line for line in lines[max(number - 2, 0) : number]):
                continue
            wrong += 1
            print(f"{path.relative_to(ROOT)}:{number}: {what}")
    if wrong:
        print(f"{wrong} uses of private names. Go through what is public, or say why: {WHY}…")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
