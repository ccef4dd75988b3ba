# SPDX-License-Identifier: Apache-2.0
"""Check the English of the pages: sentence length, phrases that are not to come back, page length.

`python tools/lint_prose.py [FILE ...]` prints one line per finding and exits with 1 if there is
one. Without arguments it reads README.md and docs/. The rules are in docs/contributing/style.md.
Prose is what remains of a page without code, tables, headings, links' targets and front matter.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MEAN_OVER_ALL = 17.0
MEAN_PER_PAGE = 20.0
LONGEST_SENTENCE = 32
LINES_PER_PAGE = 250

# What readers stumbled over, and what to write instead.
PHRASES = {
    r"by how much": "Targets not met",
    r"said? beforehand": "predict, estimate",
    r"what came of it": "results",
    r"(?<!it )takes Linux": "requires Linux",
    r"who has a": "anyone with a",
    r"without a word": "silently",
    r"\ba (?:second|minute|day) before\b": "the present result alone",
    r"\b\d[\d,.]* a second\b": "per second",
    r"there is machine code": "the C engine is available",
    r"\bthe other way round\b": "vice versa, or the second case in full",
    r"\btrainings\b|\ba training(?= (?:that|whose|takes|has|is)\b|[.,;:])": "a training run",
    r"\banew\b": "again",
    r"\bin vain\b": "without success, or until when",
    r"\bhears? of\b": "learns of, finds, gets",
}

# Pages that no person writes: their text comes from the code.
GENERATED = {"docs/figures.md"}


@dataclass(frozen=True)
class Page:
    """One page: its prose as sentences of words, and how many lines of prose it has."""

    name: str
    text: str
    sentences: list[list[str]]
    lines: int

    @property
    def mean(self) -> float:
        """Words per sentence; 0.0 for a page without sentences."""
        return sum(map(len, self.sentences)) / len(self.sentences) if self.sentences else 0.0


def prose_of(markdown: str) -> str:
    """The paragraphs and list items of a page, one blank line between them."""
    text = re.sub(r"\A---\n.*?\n---\n", "", markdown, flags=re.DOTALL)
    text = re.sub(r"^( *)(```|~~~).*?^\1\2[ \t]*$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    # What commands write between their markers is no person's prose.
    text = re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    kept: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if line.startswith("    ") and not re.match(r"\s*(?:[-*]|\d+\.) ", line):
            previous = kept[-1] if kept else ""
            if not previous:
                continue  # indented code begins after a blank line
        if stripped.startswith(("#", "|", "!!!", "???", "===", "![")):
            kept.append("")
        elif re.match(r"(?:[-*]|\d+\.) ", stripped):
            kept += ["", re.sub(r"^(?:[-*]|\d+\.) +", "", stripped)]
        else:
            kept.append(stripped)
    text = "\n".join(kept)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"<[^>]+>", "", text)


def sentences_of(prose: str) -> list[list[str]]:
    """Sentences as lists of words. Items of three words or fewer are labels, not sentences."""
    found = []
    for paragraph in re.split(r"\n\s*\n", prose):
        joined = " ".join(paragraph.split())
        joined = re.sub(r"\b(e\.g|i\.e|cf|vs|Fig|Sec|et al|etc)\.", r"\1", joined)
        for sentence in re.split(r"(?<=[.!?])[*_)\"']*\s+(?=[\"'(*_A-Z0-9c])", joined):
            words = re.findall(r"[^\W_]+(?:['\u2019-][^\W_]+)*", sentence)
            if len(words) > 3:
                found.append(words)
    return found


def read(path: Path) -> Page:
    """The page at `path`."""
    prose = prose_of(path.read_text(encoding="utf-8"))
    name = str(path.resolve().relative_to(ROOT))
    return Page(
        name, prose, sentences_of(prose), sum(bool(line.strip()) for line in prose.splitlines())
    )


def findings(pages: list[Page]) -> list[str]:
    """One line per broken rule."""
    found = []
    for page in pages:
        if page.mean > MEAN_PER_PAGE:
            found.append(
                f"{page.name}: {page.mean:.1f} words per sentence; at most {MEAN_PER_PAGE:.0f}"
            )
        if page.lines > LINES_PER_PAGE:
            found.append(f"{page.name}: {page.lines} lines of prose; at most {LINES_PER_PAGE}")
        found += [
            f"{page.name}: a sentence of {len(words)} words: {' '.join(words[:12])} …"
            for words in page.sentences
            if len(words) > LONGEST_SENTENCE
        ]
        found += [
            f"{page.name}: '{match.group()}': write instead: {better}"
            for phrase, better in PHRASES.items()
            for match in re.finditer(phrase, page.text)
        ]
    total = sum(len(page.sentences) for page in pages)
    mean = sum(page.mean * len(page.sentences) for page in pages) / max(total, 1)
    if mean > MEAN_OVER_ALL:
        found.append(f"all pages: {mean:.1f} words per sentence; at most {MEAN_OVER_ALL:.0f}")
    return found


def main(arguments: list[str]) -> int:
    """Print findings; 1 if there are any."""
    paths = [Path(name) for name in arguments] or [
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    pages = [read(path) for path in paths if str(path.resolve().relative_to(ROOT)) not in GENERATED]
    found = findings(pages)
    print("\n".join(found) or f"{len(pages)} pages: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
