# SPDX-License-Identifier: Apache-2.0
"""Check the English of docstrings and of options' help texts: sentences, phrases, broken lists.

`python tools/lint_docstrings.py` prints one line per finding and exits with 1 if there is one. The
rules are in docs/contributing/style.md; `lint_prose` checks the pages.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from lint_prose import ROOT, sentences_of

PACKAGES = (
    "common/p4reduce_common",
    "native/p4reduce_native",
    "worker/p4reduce",
    "controller/p4reduce_controller",
    "switch/p4reduce_switch",
    "lab/p4reduce_lab",
)
LONGEST_IN_DOCSTRINGS = 32
LONGEST_IN_HELP = 30
PHRASES = {
    r"\b[Ww]hoever\b": "the rank, the caller or the user",
    r"\b(?:is|are|was|were|been) told\b": "gets, sees, is called with",
    r"\b(?:tells|told|tell) of\b": "reports",
    r"\bin vain\b": "without success, or until when",
    r"\bhears? of\b": "learns of, finds, gets",
    r"\b(?:one|once|bits|bytes) a (?:second|line|rank|frame|switch|message)\b": "per",
}
"""What readers stumbled over in docstrings and help texts, and what to write instead."""

HOLLOW = re.compile(
    r"\b(?:see (?:there|above|below)|likewise|ditto)[.;]?$|, as `\w+` says\.$|"
    r"\A(?:As|See|Like|The same as) `[^`]*`\.?\Z",
    re.MULTILINE,
)
"""Docstrings and entries that say nothing themselves."""

ITEM = re.compile(r"( *)(?:[-*]|\d{1,2}\.) ")
SECTION = re.compile(r"(?:Args|Attributes|Returns|Yields|Raises):$")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def paragraphs(docstring: str) -> Iterator[str]:
    """Paragraphs of a docstring, and entries of its sections. Code and tables are left out."""
    paragraph: list[str] = []
    indent: int | None = None  # of the entries of a section; None outside of one
    for line in (*docstring.partition("\nExample")[0].splitlines(), ""):
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if indent is not None and text and depth == 0:
            indent = None
        starts = not text or depth == indent or re.match(r"[-*] |\d+\. |\|", text)
        if SECTION.match(line):
            indent, starts, text = 4, True, ""
        if starts and paragraph:
            yield re.sub(r"``[^`]*``|`[^`]*`", "code", " ".join(paragraph))
            paragraph = []
        is_code = (depth >= 4 and indent is None) or re.search(r"\S {2,}\S|^\||^>>>", text)
        if text and not is_code:
            paragraph.append(re.sub(r"^[\w*, .]+: ", "", text) if depth == indent else text)


def broken(docstring: str) -> Iterator[str]:
    """Lists and code that an automatic wrap has run together, and entries that say nothing."""
    for match in HOLLOW.finditer(docstring):
        yield f"says nothing: {match.group().strip()}"
    within: int | None = None  # the indent of the list's items
    lines = docstring.splitlines()
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        depth = len(line) - len(line.lstrip())
        # A number at the beginning of a line may also be the end of a sentence.
        begins = within is not None or not before.strip() or before.endswith(":")
        item = ITEM.match(line) if begins else None
        if not line.strip():
            within = None
        elif item is not None:
            within = len(item.group(1))
            if re.search(r"\s\d+\.$", line) and ITEM.match(after) is None and after.strip():
                yield f"a list's next item begins within a line: {line.strip()}"
        elif within is not None and depth <= within:
            yield f"a list's item goes on without an indent: {line.strip()}"
        code = re.match(r"(?:with|for|while|if|def|class|try)\b.*:$", line)
        if code is not None and after.startswith("    "):
            yield f"code outside of an example: {line}"


def helps(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each `help=` in the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "help":
            parts = node.value.values if isinstance(node.value, ast.JoinedStr) else [node.value]
            words = (part.value if isinstance(part, ast.Constant) else "code" for part in parts)
            yield node.value.lineno, "".join(map(str, words))


def findings(path: Path) -> Iterator[str]:
    """One line per sentence that is too long, and per phrase that is not to come back."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
            line = getattr(node, "lineno", 1)
            for fault in broken(docstring):
                yield f"{path.relative_to(ROOT)}:{line}: {fault}"
            for paragraph in paragraphs(docstring):
                yield from _faults(path, line, paragraph, LONGEST_IN_DOCSTRINGS)
    for line, text in helps(tree):
        yield from _faults(path, line, text, LONGEST_IN_HELP)


def _faults(path: Path, line: int, text: str, most: int) -> Iterator[str]:
    for words in sentences_of(text):
        if len(words) > most:
            begin = " ".join(words[:12])
            yield f"{path.relative_to(ROOT)}:{line}: a sentence of {len(words)} words: {begin} …"
    for phrase, better in PHRASES.items():
        for match in re.finditer(phrase, text):
            yield f"{path.relative_to(ROOT)}:{line}: '{match.group()}': write instead: {better}"


def main() -> int:
    """Print findings; 1 if there are any."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = [line for path in files for line in findings(path)]
    print("\n".join(found) or f"docstrings of {len(files)} files: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
