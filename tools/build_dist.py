# SPDX-License-Identifier: Apache-2.0
"""Builds all that a release has, from the files that git knows: two sdists and the wheels.

    python tools/build_dist.py [--out dist] [--offline]

p4reduce has a wheel for x86-64 and one for aarch64, compiled by `ziglang` for glibc 2.28.
p4reduce-lab has one for any machine. The wheels of p4reduce are built from its sdist. The same
files and the same versions of hatchling, click and ziglang give the same bytes, on any day and in
any directory.

With --offline the build takes hatchling and ziglang from this environment, not from a registry.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MACHINES = ("x86_64", "aarch64")
EPOCH = "1580601600"  # hatchling's own: 2020-02-02


def run(*command: object, **variables: str) -> None:
    """Run a command; SystemExit with its output if it fails."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, **variables}
    done = subprocess.run(
        [str(word) for word in command], env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise SystemExit(f"{words}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def tracked() -> list[str]:
    """The files that git knows, or would take; all files where this is an unpacked sdist."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode != 0:
        return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    names = sorted(set(listed.stdout.decode().split("\0")) - {""})
    return [name for name in names if (ROOT / name).is_file()]


def stage(tree: Path) -> None:
    """Copy the files of the repository, and make man pages and completions beside them."""
    for name in tracked():
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
        target.chmod(0o755 if os.access(ROOT / name, os.X_OK) else 0o644)
    shutil.rmtree(tree / "packaging" / "share", ignore_errors=True)
    run(sys.executable, ROOT / "tools" / "make_share.py", tree / "packaging" / "share")


def unpack(sdist: Path, into: Path) -> Path:
    """Unpack an sdist; return its only folder."""
    with tarfile.open(sdist) as archive:
        # Python below 3.10.12 and 3.11.4 has no filters. The archive is our own.
        if hasattr(tarfile, "data_filter"):
            archive.extractall(into, filter="data")
        else:
            archive.extractall(into)
    [folder] = into.iterdir()
    return folder


def build(out: Path, offline: bool) -> list[Path]:
    """Build into `out`; return what was built."""
    isolation = ["--no-isolation"] if offline else []
    with tempfile.TemporaryDirectory(prefix="p4reduce-dist-") as work:
        tree, built = Path(work) / "tree", Path(work) / "built"
        stage(tree)
        command = [sys.executable, "-m", "build", *isolation, "--outdir", built]
        run(*command, "--sdist", tree)
        [sdist] = built.glob("p4reduce-*.tar.gz")
        source = unpack(sdist, Path(work) / "unpacked")
        for machine in MACHINES:
            run(*command, "--wheel", source, P4REDUCE_WHEEL_FOR=machine)
        run(*command, "--sdist", "--wheel", tree / "packaging" / "lab")
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(path, out)) for path in sorted(built.iterdir())]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--offline", action="store_true", help="build in this environment")
    options = parser.parse_args()
    for path in build(options.out, options.offline):
        print(path)


if __name__ == "__main__":
    main()
