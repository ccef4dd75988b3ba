# SPDX-License-Identifier: Apache-2.0
"""The compiled P4 program that the controller puts on the switch."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4reduce_native.frame_lanes import FRAME_LANES

NAME = "p4reduce" if FRAME_LANES == 256 else f"p4reduce{FRAME_LANES}"


@dataclass(frozen=True)
class PipelineProgram:
    """A pipeline configuration (P4Runtime specification 1.4, section 7)."""

    description: bytes  # a p4.config.v1.P4Info
    device_config: bytes  # p4c's JSON, as BMv2 takes it
    digest: str  # hexadecimal SHA-256 of the two files

    @property
    def p4info(self) -> Any:  # the p4 packages have no types
        """The P4Info, as a message of the caller's own.

        Python's protobuf changes a message when it is read, so threads cannot share one.
        """
        return p4info_pb2.P4Info.FromString(self.description)

    def cookie(self) -> int:
        """Return 64 bits that identify this program and this call of `set_pipeline`.

        The upper half is the program's hash, the lower half is random. So the controller notices if
        a switch was given the same program again and lost its registers.
        """
        return int(self.digest[:8], 16) << 32 | secrets.randbits(32)


def compiled_files() -> tuple[Path, Path]:
    """Return the paths of p4c's JSON and p4info, installed or in the checkout.

    Raises FileNotFoundError naming where they were looked for.
    """
    package = Path(__file__).resolve().parents[1]
    places = [package / "pipeline", package.parents[1] / "p4src" / "compiled"]
    for place in places:
        json, p4info = place / f"{NAME}.json", place / f"{NAME}.p4info.txtpb"
        if json.is_file() and p4info.is_file():
            return json, p4info
    raise FileNotFoundError(
        f"{NAME}.json and {NAME}.p4info.txtpb are neither in {places[0]} nor in {places[1]}"
    )


def load_program(json: Path | None = None, p4info: Path | None = None) -> PipelineProgram:
    """Read the compiled program; by default the one at `compiled_files`."""
    if json is None or p4info is None:
        json, p4info = compiled_files()
    config, text = json.read_bytes(), p4info.read_bytes()
    message = p4info_pb2.P4Info()
    text_format.Parse(text, message)
    return PipelineProgram(
        message.SerializeToString(), config, hashlib.sha256(config + text).hexdigest()
    )
