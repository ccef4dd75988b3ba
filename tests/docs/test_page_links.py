# SPDX-License-Identifier: Apache-2.0
"""Every link of every page leads to a file and a heading that exist; every example is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(
        page
        for folder in ("docs", "examples", "exercises", "packaging")
        for page in sorted((ROOT / folder).rglob("*.md"))
    ),
]
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[ \t]*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """What headings of a page are called in addresses, as GitHub and the site make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        if explicit := re.search(r"\{ *#([\w-]+) *\}\s*$", heading):
            found.add(explicit.group(1))
            continue
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain.replace("`", "")).strip().replace(" ", "-")
        found.add(name)
    return found


def broken(page: Path) -> list[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`\n]*`", "", text)
    found = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (page.parent / name) if name else page
        if not place.exists() or (
            anchor and place.suffix == ".md" and anchor not in anchors(place)
        ):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_every_example_is_listed() -> None:
    folder = ROOT / "examples"
    scripts = {str(path.relative_to(folder)) for path in folder.rglob("*.py")}
    listed = set(re.findall(r"\]\(([^)]+\.py)\)", (folder / "README.md").read_text()))
    assert listed == scripts
