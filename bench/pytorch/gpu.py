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

from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.measured.machine import describe, machine
from p4reduce_lab.networks import links
from p4reduce_lab.units import rate_as_typed

from bench.pages import table
from bench.program import Option, read_options, run
from bench.pytorch.over_links import run_over_links

BACKENDS = ("p4reduce", "gloo")
SANITIZER = "compute-sanitizer"
# Seconds for the ranks of one run, their start included. They do not reach ten minutes in all.
BITS, SANITIZED, TIMES = 90.0, 100.0, 90.0
LEAST = 20.0  # seconds that a run needs
ENDING = 10.0  # seconds for a switch, a controller and a network to start and end
HELD, COPIED, HIDDEN = 0.2e-3, 0.27, 0.7  # the aims
HEAD = (
    "links",
    "backend",
    "host held, ms",
    "bucket, ms",
    "hidden, %",
    "step, ms",
    "step with int8, ms",
)


@dataclass(frozen=True)
class Part:
    """One run of two ranks.

    Attributes:
        name: for people.
        backend: of both.
        arguments: of `gpu_rank.be_rank`.
        seconds: for it.
        rate: of the links in Mbit/s; None: no limit.
        before: what to put before Python's command.
    """

    name: str
    backend: str
    arguments: Mapping[str, Any]
    seconds: float
    rate: float | None = None
    before: Sequence[str] = ()


def parts(options: argparse.Namespace, rates: Sequence[float | None]) -> list[Part]:
    """Return what to run, the most important first."""
    found = [Part("bits", "p4reduce", {"what": "bits"}, BITS)]
    times = {"what": "times", "size": options.bucket}
    times |= {"parameters": options.parameters, "steps": options.steps}
    for rate in rates:
        for backend in BACKENDS:
            name = f"{backend}, {rate_name(rate)}"
            found.append(Part(name, backend, times, TIMES, rate))
    if options.sanitizer is not None:
        before = [options.sanitizer, "--error-exitcode", "99", "--print-limit", "10"]
        # One allocation for each tensor, so that it sees where one ends.
        before = ["env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", *before]
        small = {"what": "bits", "small": True}
        found.append(Part(SANITIZER, "p4reduce", small, SANITIZED, before=before))
    return found


def rate_name(rate: float | None) -> str:
    """Return a link's rate for people."""
    return "no limit" if rate is None else rate_as_typed(rate * 1e6)


def measure(part: Part, device: str, end: float) -> dict[str, Any]:
    """Run a part, and return rank 0's figures.

    Args:
        part: to run.
        device: of the tensors.
        end: of the time for all parts, as `time.monotonic` counts.

    Returns:
        What was found until its end; with "failed" if that came too early.
    """
    from bench.pytorch.gpu_rank import be_rank  # needs torch

    seconds = min(part.seconds, end - time.monotonic() - ENDING)
    if seconds < LEAST:
        return {"failed": "the time is up"}
    with tempfile.TemporaryDirectory() as directory:
        kept = Path(directory) / "figures.json"
        try:
            found: dict[str, Any] = run_over_links(
                part.backend,
                be_rank,
                2,
                part.rate,
                timeout=seconds,
                before=part.before,
                device=device,
                figures=str(kept),
                **part.arguments,
            )
        except Exception as error:  # of whatever kind: the other parts are worth their time
            found = json.loads(kept.read_text()) if kept.exists() else {}
            found["failed"] = f"{type(error).__name__}: {error}"
    return found


def lines(found: Mapping[str, Mapping[str, Any]], rates: Sequence[float | None]) -> list[str]:
    """Return all figures for people.

    Args:
        found: of each part.
        rates: of the links.
    """
    known = next((one for one in found.values() if "device" in one), None)
    text = ["no figures"]
    if known is not None:
        text = [f"{known['device']}, two ranks, torch {known['torch']}"]
    for name in ("bits", SANITIZER):
        text += _verdict(name, found.get(name, {"failed": "not on PATH"}))
    rows = [_row(found, rate, one) for rate in rates for one in BACKENDS]
    text += ["", table(HEAD, rows)]
    text += [_aim(*aim) for aim in aims(found, rates)]
    failed = {name: one["failed"] for name, one in found.items() if "failed" in one}
    text += [f"\n{name} failed: {reason}" for name, reason in failed.items()]
    return text


def _verdict(name: str, figures: Mapping[str, Any]) -> list[str]:
    """Return what a comparison of bits found."""
    same, differs = figures.get("same", []), figures.get("differs", [])
    text = [f"{name}: {len(same)} of {len(same) + len(differs)} cases have the CPU's bits"]
    if not (same or differs):
        text = [f"{name}: not run, {figures['failed'].splitlines()[0]}"]
    elif "failed" in figures:
        text = [f"{text[0]}; it failed then"]
    return [*text, *(f"  differs: {one}" for one in differs)]


def _row(
    found: Mapping[str, Mapping[str, Any]], rate: float | None, backend: str
) -> tuple[str, ...]:
    figures = found.get(f"{backend}, {rate_name(rate)}", {})
    one = figures.get("bucket", {})
    return (
        rate_name(rate),
        "Gloo" if backend == "gloo" else backend,
        _number(one.get("held"), 1e3, 2),
        _number(one.get("sum"), 1e3, 1),
        _number(one.get("hidden"), 100, 0),
        _number(figures.get("float32", {}).get("seconds"), 1e3, 0),
        _number(figures.get("int8_hook", {}).get("seconds"), 1e3, 0),
    )


def _number(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{value * factor:.{digits}f}"


def aims(
    found: Mapping[str, Mapping[str, Any]], rates: Sequence[float | None]
) -> list[tuple[str, float | None, float, bool]]:
    """Return what was aimed at: its name, the figure, the bound, and whether that is the most.

    The figures are of p4reduce over the first links.
    """
    figures = found.get(f"p4reduce, {rate_name(rates[0])}", {})
    one = figures.get("bucket", {})
    copied = [figures.get(name, {}).get("copied") for name in ("int8_hook", "float32")]
    share = copied[0] / copied[1] if copied[0] and copied[1] else None
    return [
        ("the host is held, seconds", one.get("held"), HELD, True),
        ("int8's share of float32's copies", share, COPIED, True),
        ("hidden share of a bucket", one.get("hidden"), HIDDEN, False),
    ]


def _aim(name: str, figure: float | None, bound: float, most: bool) -> str:
    limit = f"at {'most' if most else 'least'} {bound:g}"
    if figure is None:
        return f"{name}: not measured, aim {limit}"
    met = figure <= bound if most else figure >= bound
    return f"{name}: {figure:.3g}, aim {limit}: {'met' if met else 'missed'}"


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
    for part in parts(options, rates):
        began = time.monotonic()
        found[part.name] = measure(part, options.device, end)
        how = "failed" if "failed" in found[part.name] else "done"
        print(f"{part.name}: {how} in {time.monotonic() - began:.0f} s", file=sys.stderr)
        if options.json is not None:  # after each part: what is known is not lost
            options.json.write_text(json.dumps({"machine": host, **found}))
    print(f"{describe(host)}\n")
    print("\n".join(lines(found, rates)))
    wrong = any("failed" in one or one.get("differs") for one in found.values())
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    run(main)
