# SPDX-License-Identifier: Apache-2.0
"""Prepare the pages of the site: `make docs` runs this, and then zensical.

    PYTHONPATH=. python tools/build_site.py  # build/pages, for zensical.toml

Pages of docs/ are copied. What they link to outside of docs/ becomes a page below source/, so that
no link leaves the site. Made from the code are the reference of commands and of the Python API, and
the tables of variables, constructs, error messages and defences. Measured tables come from
bench/records.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections import deque
from importlib import import_module
from pathlib import Path

import click
from draw_states import drawn
from make_share import COMMANDS, contexts
from nbconvert import MarkdownExporter
from p4reduce_common.rows import markdown_table, parse_rows
from p4reduce_lab.explain.messages import table_of
from p4reduce_switch.constructs import constructs
from variables import VARIABLES

from bench.pages import with_tables
from bench.record import SITE, newest, site_page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "pages"
MERMAID = ROOT / "build" / "npm" / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"

LINK = re.compile(r"(\]\()([^)\s#]*)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[ \t]*$", re.DOTALL | re.MULTILINE)
DEFENCES = ROOT / "tests" / "defences.tsv"
FROM_CODE = re.compile(
    r"^<!-- (variables|constructs|messages|defences)(?:: ([^>]*))? -->$", re.MULTILINE
)
"""A line whose place a table of the code takes."""
NOTEBOOK = ".ipynb"
LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".toml": "toml", ".lua": "lua",
             ".c": "c", ".h": "c", ".p4": "c"}  # fmt: skip
ALWAYS = ("examples/README.md", "exercises/README.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""What the navigation names outside of docs/."""

API = (
    ("p4reduce", "The worker library"),
    ("p4reduce.torch", "PyTorch"),
    ("p4reduce.torch.hooks", "PyTorch: communication hooks"),
    ("p4reduce.compression", "Compression"),
    ("p4reduce.launch", "For launchers"),
    ("p4reduce_lab", "A network from Python"),
)


def page_of(target: Path) -> Path:
    """The page, below build/pages, that shows a file or folder of the repository."""
    if target.is_relative_to(DOCS):
        page = PAGES / target.relative_to(DOCS)
        return page.with_suffix(".md") if target.suffix == NOTEBOOK else page
    if target == ROOT / "README.md":
        return PAGES / "index.md"
    # The site leaves out what begins with a dot.
    place = PAGES / "source" / str(target.relative_to(ROOT)).removeprefix(".")
    if target.is_dir():
        return place / ("README.md" if (target / "README.md").exists() else "files.md")
    as_it_is = target.suffix in (".md", ".png", ".svg")
    return place if as_it_is else place.with_name(f"{place.name}.md")


class Site:
    """Copies pages and whatever they link to."""

    def __init__(self) -> None:
        self._waiting: deque[Path] = deque()
        self._known: set[Path] = set()

    def want(self, target: Path) -> None:
        """See to it that a file or folder of the repository has a page."""
        if target.is_dir() and (target / "README.md").exists():
            target = target / "README.md"
        if target not in self._known:
            self._known.add(target)
            self._waiting.append(target)

    def write(self) -> None:
        """Write all pages that are wanted, and those that these want."""
        while self._waiting:
            source = self._waiting.popleft()
            if source == ROOT / "README.md":
                continue  # index.md stands for it
            page = page_of(source)
            page.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                page.write_text(self._listing(source, page), "utf-8")
            elif source.suffix == ".md":
                text = drawn(from_code(with_tables(source, source.read_text("utf-8"))))
                page.write_text(self._rewritten(source, page, text), "utf-8")
            elif source.suffix == NOTEBOOK:
                page.write_text(self._rewritten(source, page, _as_markdown(source, page)), "utf-8")
            elif page.suffix == ".md":
                page.write_text(_as_code(source), "utf-8")
            else:
                shutil.copyfile(source, page)

    def _listing(self, folder: Path, page: Path) -> str:
        lines = [f"# {folder.relative_to(ROOT)}", ""]
        for entry in sorted(folder.iterdir()):
            if entry.is_file() and entry.suffix in LANGUAGES:
                self.want(entry)
                lines.append(f"- [{entry.name}]({_relative(page_of(entry), page)})")
        return "\n".join(lines) + "\n"

    def _rewritten(self, source: Path, page: Path, text: str) -> str:
        def rewrite(match: re.Match[str]) -> str:
            before, name, after = match.groups()
            if not name or re.match(r"[a-z]+:", name):
                return match.group(0)
            if (page.parent / name).is_file() and not (source.parent / name).exists():
                return match.group(0)  # a picture that the notebook has drawn
            target = (source.parent / name).resolve()
            if not target.exists():
                raise SystemExit(f"{source.relative_to(ROOT)}: no such file: {name}")
            self.want(target)
            return f"{before}{_relative(page_of(target), page)}{after}"

        parts, end = [], 0
        for fence in FENCE.finditer(text):
            parts += [LINK.sub(rewrite, text[end : fence.start()]), fence.group(0)]
            end = fence.end()
        return "".join([*parts, LINK.sub(rewrite, text[end:])])


def _relative(target: Path, page: Path) -> str:
    return os.path.relpath(target, page.parent)


def _as_markdown(notebook: Path, page: Path) -> str:
    """A notebook with the outputs that it holds; its pictures go beside the page."""
    exporter = MarkdownExporter()
    name = notebook.stem
    text, resources = exporter.from_filename(str(notebook), {"unique_key": name})
    for picture, content in resources["outputs"].items():
        (page.parent / picture).write_bytes(content)
    origin = notebook.relative_to(ROOT)
    note = f"This page is the notebook `{origin}`: `jupyter lab {origin}` runs it."
    title, _, rest = text.strip().partition("\n")
    return f"{title}\n\n{note}\n{rest}\n"


def _as_code(source: Path) -> str:
    text = source.read_text("utf-8")
    fence = "~~~~"
    language = LANGUAGES.get(source.suffix, "text")
    return f"# {source.relative_to(ROOT)}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def commands_page() -> str:
    """Every command with its options, from click."""
    lines = [
        "# Commands",
        "",
        "What `--help` prints, for every command. [Environment variables](../environment.md) are",
        "a page of their own. `make` lists the targets of the repository.",
        "",
    ]
    for program, (module, attribute) in COMMANDS.items():
        whole = click.Context(getattr(import_module(module), attribute), info_name=program)
        for context in (whole, *contexts(whole)):
            context.max_content_width = context.terminal_width = 80  # a column of the site
            level = "#" * (1 + len(context.command_path.split()))
            help_text = context.command.get_help(context)
            lines += [f"{level} {context.command_path}", "", "```text", help_text, "```", ""]
    return "\n".join(lines) + "\n"


def api_page() -> str:
    """What mkdocstrings makes the Python reference of."""
    lines = ["# Python API", ""]
    for name, title in API:
        lines += [f"## {title}", "", f"::: {name}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


def variables_table() -> str:
    """The environment variables, by group."""
    lines = []
    for group in dict.fromkeys(one.group for one in VARIABLES):
        lines += [f"## {group}", ""]
        lines += markdown_table(
            ("variable", "value", "meaning"),
            [(f"`{one.name}`", one.value, one.meaning) for one in VARIABLES if one.group == group],
        ).splitlines()
        lines.append("")
    return "\n".join(lines)


def constructs_table() -> str:
    """The constructs of v1model, by section."""
    lines = []
    known = constructs()
    for section in dict.fromkeys(one.section for one in known):
        rows = [
            (
                ", ".join(f"`{name}`" for name in one.names),
                "yes" if one.runs else "no",
                one.program,
                one.note,
            )
            for one in known
            if one.section == section
        ]
        head = ("construct", "runs", "program", "note")
        lines += [f"## {section}", "", *markdown_table(head, rows).splitlines(), ""]
    return "\n".join(lines)


def defences_table(section: str) -> str:
    """A section of tests/defences.tsv, without a column of lines where it has none."""
    rows = [row for row in parse_rows(DEFENCES.read_text("utf-8"), DEFENCES.name)
            if row["section"] == section]  # fmt: skip
    head = [name for name in ("defence", "line", "test") if any(row[name] for row in rows)]
    return markdown_table(head, [[row[name] for name in head] for row in rows])


def from_code(text: str) -> str:
    """A page's text, with tables of the code in place of the lines that name them (`FROM_CODE`)."""

    def table(match: re.Match[str]) -> str:
        kind, section = match.groups()
        if kind == "messages":
            return table_of(section)
        if kind == "defences":
            return defences_table(section)
        return variables_table() if kind == "variables" else constructs_table()

    return FROM_CODE.sub(table, text)


def mermaid() -> bytes:
    """The script that draws diagrams, so that the site fetches none; empty where npm is missing."""
    if not MERMAID.exists():
        print("diagrams need the network when they are looked at: `make docs` found no npm")
        return b""
    return MERMAID.read_bytes()


def build() -> None:
    """Make build/pages again."""
    shutil.rmtree(PAGES, ignore_errors=True)
    site = Site()
    for path in sorted(DOCS.rglob("*")):
        if path.is_file():
            site.want(path)
    for name in ALWAYS:
        site.want(ROOT / name)
    site.write()
    reference = PAGES / "reference"
    reference.mkdir()
    (reference / "commands.md").write_text(commands_page(), "utf-8")
    (reference / "api.md").write_text(api_page(), "utf-8")
    (PAGES / SITE).write_text(site_page(newest()), "utf-8")
    (PAGES / "javascripts").mkdir()
    (PAGES / "javascripts" / MERMAID.name).write_bytes(mermaid())


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0]).parse_args()
    build()


if __name__ == "__main__":
    main()
