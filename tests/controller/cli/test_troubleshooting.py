# SPDX-License-Identifier: Apache-2.0
"""Every error that a user can meet is explained, on the two pages of errors or by `explain`."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from p4reduce_controller.doctor.switch import SYMPTOMS
from p4reduce_controller.terminal.exit_codes import Exit
from p4reduce_lab.explain.messages import explain, fitting
from p4reduce_lab.explain.messages import messages as messages_known

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = ("troubleshooting.md", "command-errors.md")
KNOWN = messages_known()
PAGE = "\n".join((DOCS / name).read_text() for name in PAGES)
NAMES = f"{PAGE} {' '.join(f'{one.section} {one.error} {one.message}' for one in KNOWN)}"

# Where errors come from whose text reaches people: raised from the library, printed by a command,
# or told by the controller. All others end within the program.
MODULES = (
    "p4reduce.errors",
    "p4reduce.control.client",
    "p4reduce.control.tls",
    "p4reduce.ring.handshake",
    "p4reduce_controller.jobs.allocator",
    "p4reduce_controller.controller",
    "p4reduce_controller.events",
    "p4reduce_controller.fabric.fabric",
    "p4reduce_controller.jobs.job",
    "p4reduce_controller.service.listen",
    "p4reduce_controller.fabric.p4client",
    "p4reduce_controller.fabric.schema",
    "p4reduce_controller.storage.job_table",
    "p4reduce_switch.program.load_error",
    "p4reduce_switch.p4runtime.p4info",
    "p4reduce_switch.ports.port",
    "p4reduce_switch.errors",
    "p4reduce_switch.p4runtime.server_tls",
    "p4reduce_lab.errors",
    "p4reduce_lab.processes.children",
)


def errors() -> set[str]:
    return {
        name
        for module in MODULES
        for name, thing in vars(importlib.import_module(module)).items()
        if inspect.isclass(thing) and issubclass(thing, Exception) and thing.__module__ == module
    }


def test_errors_were_found() -> None:
    assert {"WorkerLostError", "ListenError", "PortError", "UnavailableError"} <= errors()


@pytest.mark.parametrize("name", sorted(errors()))
def test_each_error_is_there(name: str) -> None:
    assert re.search(rf"\b{name}\b", NAMES), f"{name} is not explained"


@pytest.mark.parametrize("code", list(Exit), ids=lambda code: code.name)
def test_each_exit_code_is_there(code: Exit) -> None:
    section = PAGE.partition("\n## p4reduce-controller\n")[2].partition("\n## ")[0]
    assert re.search(rf"^\| {code.value} \| \S", section, re.MULTILINE)


@pytest.mark.parametrize("symptom", sorted(SYMPTOMS.keys() - {"slot-out-of-range"}))
def test_symptoms_are_there(symptom: str) -> None:
    assert f"`{symptom}`" in PAGE


# -- Texts ----------------------------------------------------------------------------------------
#
# What is raised is compared with the messages on the page, word by word: "…" stands for what is
# filled in, on both sides, and the page may leave out how a message begins or ends.

PACKAGES = (
    "common/p4reduce_common",
    "native/p4reduce_native",
    "worker/p4reduce",
    "controller/p4reduce_controller",
    "switch/p4reduce_switch",
    "lab/p4reduce_lab",
)
FROM_CLICK = {"BadParameter", "ClickException", "UsageError"}
LEAST = 8  # letters that say what it is

_ARGUMENT = "names the argument at fault, and what would be right"
_TO_CONTROLLERS = "P4Runtime's answer to a controller, whose own error has the text"
_WITHIN = "caught where it is raised from, and told as another error"

EXEMPT_ERRORS = {
    "TypeError": _ARGUMENT,
    "ValueError": _ARGUMENT,
    "BadParameter": _ARGUMENT,
    "UsageError": _ARGUMENT,
    "TopologyError": _ARGUMENT,
    "ArgumentsError": _ARGUMENT,
    "CommandError": _ARGUMENT,
    "NoSuchFrameError": _ARGUMENT,
    "AlreadyThereError": _TO_CONTROLLERS,
    "NotThereError": _TO_CONTROLLERS,
    "FullError": _TO_CONTROLLERS,
    "InUseError": _TO_CONTROLLERS,
    "ConstantError": _TO_CONTROLLERS,
    "MixedUseError": _TO_CONTROLLERS,
    "BlockingIOError": _WITHIN,
    "IndexError": _WITHIN,
    "LookupError": _WITHIN,
    "CompileError": _WITHIN,
    "MemoryError": "as everywhere",
    "NotNativeError": "a reason behind the one text on the page: docs/embedded-switch.md, engines",
    "CodecError": _WITHIN,
    "AssertionError": "cannot happen",
    "NotImplementedError": "what a class does not offer, of those that never call it",
    "LostError": "of ranks that are threads of one process: docs/methods.md",
    "LoadError": "one a construct, with file and line: docs/embedded-switch.md has what is there",
    "P4InfoError": "one a contradiction in a P4Info that p4c did not write",
}
# Texts that say themselves what would be right, in the words of `normal`.
SAYS_WHAT_IS_RIGHT = re.compile(
    r"it must be|each needs|bytes at most|requires net|(?:is|are) possible|at (?:most|least) …"
    r"|is not one of|unset one of|set it or"
    r"|leave .* unset|pip install|apt get install|take … or more|take more|known …$"
    r"|networks here have|one at a time|try again|such as …|leave out|needs pytorch"
    r"|root or cap net raw|call start before|a wider dtype has room|is not a valid value"
    r"|framework numpy|has ….*it has …$|turned off by"
)
# What others say that this only passes on: OpenSSL, the kernel, C++ in torch.
FOREIGN = {
    "too many open files",
    "unable to get local issuer certificate",
    "your assigned backend p4reduce is not available please use gloo",
    "terminate called without an active exception",
}

_PROGRAM = "about the program that this package brings: a bug, met when a controller starts at all"
EXEMPT_TEXTS = {
    "… a sum leaves …": "of ranks that are threads of one process: docs/methods.md",
    "… is out of job …": "a reason within, of an agreement after the loss of a rank",
    "rank … is at step … of settling its job and the others are at step …": "as above",
    "… … does not fit … bits": _PROGRAM,
    "no register …": _PROGRAM,
    "table … matches on … not …": _PROGRAM,
    "table … has no action …": _PROGRAM,
    "action … takes … not …": _PROGRAM,
    "the program takes no packets from the controller": _PROGRAM,
    "… is not an exact match the only kind supported": _PROGRAM,
    "no pipeline was set yet": _PROGRAM,
    "module … has no attribute …": "what any module says",
    "unable to perform re rendezvous using env method": "torch's own text, in its place",
    "this process has … sets of pairs already close one": "what starts switches itself",
}


@dataclass(frozen=True)
class Raised:
    """An error with a text that is made somewhere."""

    error: str
    text: str
    where: str


def normal(text: str) -> str:
    """Return the words alone. Numbers are filled in, wherever they come from."""
    text = re.sub(r"\b\d+\b", "…", text)
    return " ".join(re.findall(r"…|[^\W_]+", text.lower()))


def letters(text: str) -> int:
    return sum(len(word) for word in text.split() if word != "…")


def texts(node: ast.expr) -> list[str]:
    """Return what an expression may read as; "…" for what is not constant."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else ["…"]
    if isinstance(node, ast.JoinedStr):
        return ["".join(parts) for parts in product(*map(texts, node.values))]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return ["".join(parts) for parts in product(texts(node.left), texts(node.right))]
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.IfExp):
        return texts(node.value)
    return ["…"]


@cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return tuple(
        (str(path.relative_to(ROOT)), ast.parse(path.read_text()))
        for path in paths
        if "_pb2" not in path.name
    )


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def exceptions() -> set[str]:
    """Return the names of all classes that can be raised."""
    bases = {
        node.name: {name_of(base) for base in node.bases}
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {
        name
        for name, thing in vars(builtins).items()
        if inspect.isclass(thing) and issubclass(thing, BaseException)
    } | FROM_CLICK
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


@cache
def raised() -> tuple[Raised, ...]:
    """Return all errors with a text that are made, raised at once or handed to who does."""
    known = exceptions()
    return tuple(
        Raised(name_of(node.func), text, f"{path}:{node.lineno}")
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node.func) in known
        for argument in node.args
        for text in map(normal, texts(argument))
        if letters(text) >= LEAST
    )


@cache
def said() -> Texts:
    """Return all that is written in the programs: reasons are made apart from what has them."""
    return Texts(
        text
        for _, tree in trees()
        for statement in ast.walk(tree)
        if not isinstance(statement, ast.Expr)  # a docstring
        for node in ast.iter_child_nodes(statement)
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp)
        for text in map(normal, texts(node))
        if letters(text) >= LEAST
    )


@cache
def messages() -> tuple[str, ...]:
    """Return those that `p4reduce-lab explain` knows, and those of the pages, in italics.

    A message in brackets says what the messages are about.
    """
    found = [one.message for one in KNOWN if not re.match(r"\(.*\)$", one.message)]
    found += re.findall(
        r"(?<!\*)\*([^*]+)\*(?!\*)", re.sub(r"^\|.*$", "", PAGE, flags=re.MULTILINE)
    )
    return tuple(found)


class Texts:
    """Texts by their words, so that few of them have to be compared with a message."""

    def __init__(self, all_of_them: Iterable[str]) -> None:
        self._texts = tuple(all_of_them)
        self._having: dict[str, list[int]] = defaultdict(list)
        for number, text in enumerate(self._texts):
            for word in set(text.split()) - {"…"}:
                self._having[word].append(number)

    def alike(self, words: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Those that have some of the words, with how many letters these have together."""
        same = Counter[int]()
        for word in words:
            for number in self._having.get(word, ()):
                same[number] += len(word)
        return ((self._texts[number], count) for number, count in same.items())


def needed_by(message: str) -> float:
    """How many letters of a message have to be in a text as well: half of them."""
    return max(LEAST, letters(message) / 2)


def fits(message: str, text: str) -> bool:
    """Whether a message on the page may be this text."""
    needed = needed_by(message)
    wanted, words = message.split(), text.split()

    # How many letters are the same from word i of the one and word j of the other on, from the
    # end to the beginning. All words of the page have to be used, or filled in by the text.
    below = [0.0] * (len(words) + 1)
    for i in reversed(range(len(wanted))):
        row = [-math.inf] * (len(words) + 1)
        if wanted[i] == "…":
            row[-1] = below[-1]
        for j in reversed(range(len(words))):
            if "…" in (wanted[i], words[j]):
                row[j] = max(below[j], row[j + 1])
            elif wanted[i] == words[j]:
                row[j] = len(wanted[i]) + below[j + 1]
        below = row
    return max(below) >= needed


@cache
def alternatives() -> Texts:
    """Return the messages, and the parts of those that are several, or one in another."""
    return Texts(
        part
        for message in messages()
        for part in map(normal, {message, *message.split(";"), *re.split("[;:]", message)})
        if letters(part) >= LEAST
    )


def is_said(part: str) -> bool:
    return letters(part) < LEAST or any(
        same >= needed_by(part) and fits(part, text) for text, same in said().alike(part.split())
    )


def test_each_text_is_there() -> None:
    lacking = [
        f"{each.where}: {each.error}: {each.text}"
        for each in raised()
        if each.error not in EXEMPT_ERRORS and each.text not in EXEMPT_TEXTS
        if not SAYS_WHAT_IS_RIGHT.search(each.text)
        if not any(
            same >= needed_by(message) and fits(message, each.text)
            for message, same in alternatives().alike(set(each.text.split()))
        )
    ]
    assert not lacking, f"not in {PAGES}:\n" + "\n".join(lacking)


def test_exemptions_are_needed() -> None:
    assert {each.error for each in raised()} >= EXEMPT_ERRORS.keys()
    assert {each.text for each in raised()} >= EXEMPT_TEXTS.keys()


def test_what_fits() -> None:
    text = normal("job 'x' lost its switch when … had left already")
    assert fits(normal("job … lost its switch when rank 3 had left"), text)
    assert fits(normal("lost its switch"), text)
    assert not fits(normal("job … lost its controller when … had left already"), text)
    assert not fits(normal("… had left already, lost its switch"), text)
    assert not fits(normal("job … when …"), text)


def test_each_message_is_said() -> None:
    """Each of the parts, as they are all that people see."""
    invented = [
        part
        for message in messages()
        for part in message.split(";")
        if not is_said(normal(part))
        and not all(is_said(each) or each in FOREIGN for each in map(normal, part.split(":")))
    ]
    assert not invented, "on the page, but nothing says so:\n" + "\n".join(invented)


@pytest.mark.parametrize(
    ("text", "section", "cure"),
    [
        ("p4reduce.errors.WorkerLostError: job 'a' has failed: rank 1 was lost: no heartbeat for "
         "3 s", "WorkerLostError", "serve --lease"),
        ("Error: interface eth7 is down", "SwitchUnreachableError", "ip address"),
        ("MismatchError", "MismatchError", "make the calls equal"),
    ],
)  # fmt: skip
def test_a_message_is_explained(text: str, section: str, cure: str) -> None:
    found = fitting(text)
    assert found[0].section == section
    assert cure in explain(found)


def test_a_stranger_is_not_explained() -> None:
    assert fitting("Segmentation fault (core dumped)") == []
