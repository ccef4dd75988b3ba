# SPDX-License-Identifier: Apache-2.0
"""What each rank of `bench.pytorch.over_links` is given, and how it joins."""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist


def rank_parser() -> argparse.ArgumentParser:
    """Return a parser with the arguments that `run_over_links` adds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", choices=["gloo", "p4reduce"])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    return parser


def join(options: argparse.Namespace, timeout: timedelta | None = None) -> None:
    """Make torch's default group; `timeout` is that of its collectives."""
    dist.init_process_group(
        options.backend,
        f"file://{options.store}",
        rank=options.rank,
        world_size=options.ranks,
        timeout=timeout,
    )
