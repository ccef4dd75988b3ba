# SPDX-License-Identifier: Apache-2.0
"""What a GPU's tensors cost, and whether their sums have the bits of the CPU's.

Two ranks share the first GPU, with an embedded switch and its controller on this machine.

- Bits: each collective and dtype, and narrow lanes, on the GPU and on the CPU.
- The same, smaller, under `compute-sanitizer`, if that is on PATH.
- Over links of each of `--rates`, p4reduce and Gloo: how long `all_reduce(async_op=True)` of a
  bucket of 25 MB holds the host, how long the sum takes, how much of that hides behind a
  multiplication that keeps the GPU as long; and the step of a transformer, with int8 too.

    sudo python -m bench.pytorch.gpu --json gpu.json

A part that fails is reported, and the others run. Without root the links have no limit. `--device
cpu` and `--device fake` run the same without a GPU, to try the script. The exit code is 1 if bits
differ or a part failed, and 77 if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4reduce_common.rows import markdown_table
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.measured.machine import describe, machine
from p4reduce_lab.networks import links
from p4reduce_lab.units import rate_as_typed

from bench.program import Option, read_options, run
from bench.pytorch.over_links import run_over_links

BACKENDS = {"p4reduce": "p4reduce", "gloo": "Gloo"}
SANITIZER = "compute-sanitizer"
# Seconds for the ranks of one run, their start included. They do not reach ten minutes in all.
BITS, SANITIZED, TIMES = 90.0, 100.0, 90.0
LEAST = 20.0  # seconds that a run needs
ENDING = 10.0  # seconds for a switch, a controller and a network to start and end
HEAD = ("links", "backend", "host held, ms", "bucket, ms", "hidden, %", "step, ms",
        "step with int8, ms")  # fmt: skip

Found = Mapping[str, Mapping[str, Any]]
"""The figures of each part."""


@dataclass(frozen=True)
class Part:
    """One run of two ranks.

    Attributes:
        backend: of both.
        arguments: of `gpu_rank.be_rank`.
        seconds: for it.
        rate: of the links in Mbit/s; None: no limit.
        before: what to put before Python's command.
    """

    backend: str
    arguments: Mapping[str, Any]
    seconds: float
    rate: float | None = None
    before: Sequence[str] = ()


def parts(options: argparse.Namespace, rates: Sequence[float | None]) -> dict[str, Part]:
    """Return what to run by its name, the most important first."""
    found = {"bits": Part("p4reduce", {"what": "bits"}, BITS)}
    times = {"what": "times", "size": options.bucket}
    times |= {"parameters": options.parameters, "steps": options.steps}
    for rate in rates:
        for backend in BACKENDS:
            found[f"{backend}, {rate_name(rate)}"] = Part(backend, times, TIMES, rate)
    if options.sanitizer is not None:
        # One allocation for each tensor, so that it sees where one ends.
        before = ["env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", options.sanitizer]
        before += ["--error-exitcode", "99", "--print-limit", "10"]
        small = {"what": "bits", "small": True}
        found[SANITIZER] = Part("p4reduce", small, SANITIZED, before=before)
    return found


def rate_name(rate: float | None) -> str:
    """Return a link's rate for people."""
    return "no limit" if rate is None else rate_as_typed(rate * 1e6)


def measure(part: Part, device: str, end: float) -> dict[str, Any]:
    """Run a part on a device, and return rank 0's figures; with "failed" if it did not end well.

    `end` is of the time for all parts, as `time.monotonic` counts.
    """
    from bench.pytorch.gpu_rank import be_rank  # needs torch

    seconds = min(part.seconds, end - time.monotonic() - ENDING)
    if seconds < LEAST:
        return {"failed": "the time is up"}
    with tempfile.TemporaryDirectory() as directory:
        kept = Path(directory) / "figures.json"
        given = {**part.arguments, "device": device, "figures": str(kept)}
        try:
            found: dict[str, Any] = run_over_links(
                part.backend, be_rank, 2, part.rate, timeout=seconds, before=part.before, **given
            )
        except Exception as error:  # of whatever kind: the other parts are worth their time
            found = json.loads(kept.read_text()) if kept.exists() else {}
            found["failed"] = f"{type(error).__name__}: {error}"
    return found


def lines(found: Found, rates: Sequence[float | None]) -> list[str]:
    """Return all figures for people."""
    known = next((one for one in found.values() if "device" in one), None)
    text = ["no figures"]
    if known is not None:
        text = [f"{known['device']}, two ranks, torch {known['torch']}"]
    for name in ("bits", SANITIZER):
        figures = found.get(name, {"failed": "not on PATH"})
        same, differs = figures.get("same", []), figures.get("differs", [])
        if same or differs:
            count = f"{len(same)} of {len(same) + len(differs)}"
            failed = "; it failed then" if "failed" in figures else ""
            text.append(f"{name}: {count} cases have the CPU's bits{failed}")
        else:
            text.append(f"{name}: not run, {figures['failed'].splitlines()[0]}")
        text += [f"  differs: {one}" for one in differs]
    rows = []
    for rate in rates:
        for backend, shown in BACKENDS.items():
            figures = found.get(f"{backend}, {rate_name(rate)}", {})
            cells = [
                ("bucket", "held", 1e3, 2),
                ("bucket", "sum", 1e3, 1),
                ("bucket", "hidden", 100, 0),
                ("float32", "seconds", 1e3, 0),
                ("int8_hook", "seconds", 1e3, 0),
            ]
            values = [(figures.get(of, {}).get(what), *form) for of, what, *form in cells]
            numbers = ("–" if one is None else f"{one * f:.{n}f}" for one, f, n in values)
            rows.append([rate_name(rate), shown, *numbers])
    text += [
        "",
        markdown_table(HEAD, rows),
        *aims(found.get(f"p4reduce, {rate_name(rates[0])}", {})),
    ]
    return text + [
        f"\n{name} failed: {one['failed']}" for name, one in found.items() if "failed" in one
    ]


def aims(figures: Mapping[str, Any]) -> list[str]:
    """Return what was aimed at, of p4reduce over the first links."""
    one = figures.get("bucket", {})
    int8, float32 = (figures.get(name, {}).get("copied") for name in ("int8_hook", "float32"))
    wanted = (
        ("the host is held, seconds", one.get("held"), "at most", 0.2e-3),
        ("int8's share of float32's copies", int8 and float32 and int8 / float32, "at most", 0.27),
        ("hidden share of a bucket", one.get("hidden"), "at least", 0.7),
    )
    text = []
    for name, figure, most, bound in wanted:
        if figure is None:
            text.append(f"{name}: not measured, aim {most} {bound:g}")
            continue
        met = figure <= bound if most == "at most" else figure >= bound
        text.append(f"{name}: {figure:.3g}, aim {most} {bound:g}: {'met' if met else 'missed'}")
    return text


def no_gpu() -> str | None:
    """Return why there is no GPU for torch here; None: there is one."""
    import torch

    if torch.cuda.is_available():
        return None
    built = torch.version.cuda or torch.version.hip
    return f"torch {torch.__version__} finds no GPU; it was built for {built or 'CPUs alone'}"


def main() -> None:
    options = read_options(
        __doc__,
        device=Option("cuda", choices=("cuda", "cpu", "fake")),
        rates=Option([1000.0, 10_000.0], "Mbit/s; none: links without a limit"),
        parameters=100e6,
        bucket=Option(25 << 20, "bytes"),
        steps=3,
        minutes=Option(9.5, "for all of it"),
    )
    options.sanitizer = shutil.which(SANITIZER) if options.device == "cuda" else None
    if options.device == "cuda" and (reason := no_gpu()) is not None:
        raise UnavailableError(f"gpu: {reason}")
    rates: list[float | None] = list(options.rates) or [None]
    if rates != [None] and (reason := links.unavailable()) is not None:
        print(f"gpu: the links have no limit: {reason}", file=sys.stderr)
        rates = [None]
    host, found = machine(), dict[str, Any]()
    end = time.monotonic() + options.minutes * 60
    for name, part in parts(options, rates).items():
        began = time.monotonic()
        found[name] = measure(part, options.device, end)
        how = "failed" if "failed" in found[name] else "done"
        print(f"{name}: {how} in {time.monotonic() - began:.0f} s", file=sys.stderr)
        if options.json is not None:  # after each part: what is known is not lost
            options.json.write_text(json.dumps({"machine": host, **found}))
    print(f"{describe(host)}\n")
    print("\n".join(lines(found, rates)))
    wrong = any("failed" in one or one.get("differs") for one in found.values())
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    run(main)
