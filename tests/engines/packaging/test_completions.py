# SPDX-License-Identifier: Apache-2.0
"""Each shell completes a command by the file that the wheel brings for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import run
from needed import ROOT, needs

pytestmark = pytest.mark.engines

# zsh completes in its line editor, so its file is run with compadd replaced.
ASK = {
    "bash": """
        source {share}/bash-completion/completions/{program}
        COMP_WORDS=({words}) COMP_CWORD={last}
        _{function}_completion {program}
        printf '%s\\n' "${{COMPREPLY[@]}}" """,
    "zsh": """
        compdef() {{ :; }}
        _describe() {{ local -a found; found=("${{(@P)3}}"); print -l -- "${{found[@]%%:*}}"; }}
        compadd() {{ shift $(( $# - 1 )); print -l -- ${{(P)1}}; }}
        source {share}/zsh/site-functions/_{program}
        words=({words}) CURRENT={next}
        _{function}_completion """,
    "fish": """
        source {share}/fish/vendor_completions.d/{program}.fish
        complete -C '{words}' """,
}


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    run(sys.executable, ROOT / "tools" / "make_share.py", folder)
    return folder


@pytest.mark.parametrize(
    "shell", [pytest.param(name, marks=needs(programs=(name,))) for name in ASK]
)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("p4reduce-lab exe", {"exec"}),
        ("p4reduce-controller job l", {"list"}),
        ("p4reduce-switch --engi", {"--engine"}),
    ],
)
def test_completes(shell: str, words: str, expected: set[str], share: Path) -> None:
    program = words.split()[0]
    script = ASK[shell].format(
        share=share,
        program=program,
        function=program.replace("-", "_"),
        words=words,
        last=len(words.split()) - 1,
        next=len(words.split()),
    )
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    quiet = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *quiet, "-c", script], capture_output=True, text=True, timeout=200, env=variables
    )
    found = {line.split("\t")[0] for line in done.stdout.splitlines() if line}
    assert found == expected, done.stderr
