# SPDX-License-Identifier: Apache-2.0
"""A forwarding-pipeline configuration, from P4Runtime's message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4reduce_native.errors import NativeUnavailableError

from p4reduce_switch.codegen_c import NotNativeError
from p4reduce_switch.errors import invalid
from p4reduce_switch.p4runtime.config import ForwardingConfig
from p4reduce_switch.p4runtime.device_config import entries_of, program_of
from p4reduce_switch.p4runtime.entities.common import shown_of
from p4reduce_switch.p4runtime.initial_entries import open_tables
from p4reduce_switch.p4runtime.p4info import P4Info, P4InfoError, state_key
from p4reduce_switch.p4runtime.packets import PacketCodec
from p4reduce_switch.p4runtime.unused import add_unused
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.program.load_error import LoadError

_DIFFERENCES_SHOWN = 5


def load_program(program: bytes, load: Callable[[bytes], Pipeline]) -> Pipeline:
    """Load p4c's JSON, with or without an envelope.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT, with the reason.
    """
    try:
        return load(program_of(program))
    except (LoadError, NotNativeError, NativeUnavailableError) as error:
        raise invalid(f"p4_device_config: {error}") from None


def load_config(
    message: Any, load: Callable[[bytes], Pipeline], entries_file: bytes = b""
) -> ForwardingConfig:
    """Load a `p4.v1.ForwardingPipelineConfig`.

    Args:
        load: makes a pipeline from p4c's JSON, as `load_pipeline` does.
        entries_file: p4c's file of the program's entries, as text. The message may have one, too.

    Raises:
        P4RuntimeError: INVALID_ARGUMENT, with the reason: a part is missing, the program cannot be
            loaded, or the P4Info belongs to another program.
    """
    if not message.p4_device_config:
        raise invalid("p4_device_config is empty; it must be the JSON that p4c wrote for BMv2")
    if not message.HasField("p4info"):
        raise invalid("p4info is missing; it must be the P4Info that p4c wrote with the JSON")
    try:
        p4info = P4Info.parse(message.p4info)
    except P4InfoError as error:
        raise invalid(f"p4info: {error}") from None
    pipeline = load_program(message.p4_device_config, load)
    p4info = p4info.fitted(pipeline)
    differences = p4info.differences(pipeline)
    if differences:
        raise invalid(
            "p4info and p4_device_config are not of the same program: "
            + shown_of(differences, _DIFFERENCES_SHOWN)
        )
    add_unused(p4info, pipeline)
    open_tables(p4info, pipeline, entries_file or entries_of(message.p4_device_config))
    for spec in p4info.value_sets.values():
        # The program's JSON does not have `@match`.
        pipeline.value_sets[spec.name].match_by(state_key(spec.fields))
    return ForwardingConfig(
        message=message,
        p4info=p4info,
        pipeline=pipeline,
        packet_in=PacketCodec(p4info.packet_in),
        packet_out=PacketCodec(p4info.packet_out),
    )
