# SPDX-License-Identifier: Apache-2.0
"""Wireshark's dissector, made of the header's table; `make header` writes it."""

from __future__ import annotations

from p4reduce.wire import format as wire

HEAD = """\
-- SPDX-License-Identifier: Apache-2.0
-- Wireshark's dissector of p4reduce (docs/protocol.md).
-- Written by `make header` from worker/p4reduce/wire/header.py: change that, not this.
--
--   wireshark -X lua_script:wireshark/p4reduce.lua capture.pcap

local p4reduce = Proto("p4reduce", "p4reduce in-network aggregation")
"""

BODY = """
local experts = {
    retransmission = ProtoExpert.new("p4reduce.expert.retransmission", "Retransmission",
        expert.group.SEQUENCE, expert.severity.NOTE),
    overflow = ProtoExpert.new("p4reduce.expert.overflow", "A lane has overflowed",
        expert.group.PROTOCOL, expert.severity.WARN),
    nonfinite = ProtoExpert.new("p4reduce.expert.nonfinite", "NaN or infinity in a block",
        expert.group.PROTOCOL, expert.severity.WARN),
    mismatch = ProtoExpert.new("p4reduce.expert.mismatch", "Ranks called different collectives",
        expert.group.PROTOCOL, expert.severity.ERROR),
    length = ProtoExpert.new("p4reduce.expert.length", "Length does not fit the flags",
        expert.group.MALFORMED, expert.severity.ERROR),
}
p4reduce.experts = experts

local function number_or_none(value)
    return value == NO_BLOCK and "none" or tostring(value)
end

local function add_lanes(tree, lanes, format)
    local bits = lane_bits[format]
    if bits == nil then
        tree:add(fields.payload, lanes)
        return
    end
    local branch = tree:add(fields.payload, lanes)
    branch:append_text(string.format(" (%d lanes of %d bits)", 8 * lanes:len() / bits, bits))
    local field = fields["lane" .. bits]
    if bits < 8 then
        -- Two in a byte, the first one in its upper half.
        for offset = 0, lanes:len() - 1 do
            for half = 0, 4, 4 do
                local lane = lanes(offset, 1):bitfield(half, 4)
                branch:add(field, lanes(offset, 1), lane < 8 and lane or lane - 16)
            end
        end
        return
    end
    local bytes = bits / 8
    for offset = 0, lanes:len() - bytes, bytes do
        branch:add(field, lanes(offset, bytes))
    end
end

function p4reduce.dissector(buffer, packet, root)
    if buffer:len() < HEADER_BYTES or buffer(0, 1):bitfield(0, 4) ~= VERSION then
        return 0
    end
    packet.cols.protocol = "p4reduce"
    local tree = root:add(p4reduce, buffer(0))
    add_header(tree, buffer)

    local kind = buffer(OFFSET.kind, 1):bitfield(4, 4)
    -- By bit number: Lua got bit operators only with 5.3, Wireshark with 4.4.
    local function has(bit)
        return buffer(OFFSET.flags, 1):bitfield(7 - bit, 1) == 1
    end
    local rank = buffer(OFFSET.rank, 2):uint()
    local slot = buffer(OFFSET.slot, 2):uint()
    local format = buffer(OFFSET.format, 1):uint()
    local round = buffer(OFFSET.round, 4):uint()
    local block = buffer(OFFSET.block, 4):uint()
    local next_block = buffer(OFFSET.next_block, 4):uint()

    local said = { kinds[kind] or string.format("kind %d", kind), "rank " .. rank }
    if kind ~= KIND.HELLO then
        said[#said + 1] = "slot " .. slot
        said[#said + 1] = "round " .. round
        said[#said + 1] = "block " .. number_or_none(block)
        said[#said + 1] = "next " .. number_or_none(next_block)
    end
    for _, flag in ipairs(flag_names) do
        if has(flag.bit) then
            said[#said + 1] = kind ~= KIND.RESULT and flag.otherwise or flag.name
        end
    end
    packet.cols.info = table.concat(said, " ")

    if has(FLAG.RETRANSMISSION) then tree:add_proto_expert_info(experts.retransmission) end
    if has(FLAG.OVERFLOW) then tree:add_proto_expert_info(experts.overflow) end
    if has(FLAG.NONFINITE) then tree:add_proto_expert_info(experts.nonfinite) end
    if has(FLAG.MISMATCH) then tree:add_proto_expert_info(experts.mismatch) end

    local expected = 0
    -- Elsewhere the same bits say something else.
    if kind == KIND.RESULT and (has(FLAG.FIRST_HALF) or has(FLAG.SECOND_HALF)) then
        expected = HALF_BYTES
    elseif has(FLAG.PAYLOAD) or has(FLAG.PADDED) then
        expected = PAYLOAD_BYTES
    end
    local rest = buffer:len() - HEADER_BYTES
    if rest == SHORT_PAYLOAD_BYTES and expected == PAYLOAD_BYTES then
        expected = rest
    end
    if rest ~= expected then
        tree:add_proto_expert_info(experts.length,
            string.format("%d bytes after the header, the flags say %d", rest, expected))
    end
    if rest > 0 then
        if has(FLAG.PAYLOAD) then
            add_lanes(tree, buffer(HEADER_BYTES), format)
        else
            tree:add(fields.padding, buffer(HEADER_BYTES))
        end
    end
    return buffer:len()
end

DissectorTable.get("udp.port"):add(PORT, p4reduce)
"""


def _flag_name(flag: wire.Flag) -> str:
    """A flag, and what the same bit is called in other frames than a RESULT."""
    entry = f'bit = FLAG.{flag.name}, name = "{flag.name}"'
    for name, member in wire.Flag.__members__.items():
        if member is flag and name != flag.name:
            entry += f', otherwise = "{name}"'
    return f"{{ {entry} }}"


def _table(name: str, rows: list[str]) -> str:
    return f"local {name} = {{\n" + "".join(f"    {row},\n" for row in rows) + "}\n"


def dissector() -> str:
    """Return the Lua source."""
    fields: list[str] = []
    adds: list[str] = []
    offsets: list[str] = []
    position = 0
    for field in wire.HEADER_FIELDS:
        bits = field.bits
        offset, size = position // 8, max(1, bits // 8)
        label, filter_name = field.label, f"p4reduce.{field.name}"
        offsets.append(f"{field.name} = {offset}")
        position += bits
        base = "HEX" if field.hexadecimal or field.name == "flags" else "DEC"
        extra = ""
        if bits % 8:
            shift = 8 - bits - (position - bits) % 8
            names = "kinds" if field.name == "kind" else "nil"
            extra = f", {names}, 0x{((1 << bits) - 1) << shift:02x}"
        elif field.name == "format":
            extra = ", formats"
        width = 8 * size
        fields.append(
            f'{field.name} = ProtoField.uint{width}("{filter_name}", "{label}", base.{base}{extra})'
        )
        if field.name == "flags":
            adds.append(
                f"    local flags = tree:add(fields.{field.name}, buffer({offset}, {size}))"
            )
            for flag in wire.Flag:
                name = str(flag.name).lower()
                fields.append(
                    f'flag_{name} = ProtoField.bool("p4reduce.flags.{name}", '
                    f'"{flag.name}", 8, nil, 0x{flag.value:02x})'
                )
                adds.append(f"    flags:add(fields.flag_{name}, buffer({offset}, {size}))")
        else:
            adds.append(f"    tree:add(fields.{field.name}, buffer({offset}, {size}))")
    fields += [
        'payload = ProtoField.bytes("p4reduce.payload", "Payload")',
        'padding = ProtoField.bytes("p4reduce.padding", "Padding")',
        *(
            f'lane{bits} = ProtoField.int{max(bits, 8)}("p4reduce.lane", "Lane", base.DEC)'
            for bits in dict.fromkeys(lanes.lane_bits for lanes in wire.Format)
        ),
    ]
    return (
        "\n".join(
            [
                HEAD,
                f"local PORT = {wire.AGGREGATION_PORT}",
                f"local VERSION = {wire.AGGREGATION_VERSION}",
                f"local HEADER_BYTES = {wire.AGG_BYTES}",
                f"local PAYLOAD_BYTES = {wire.PAYLOAD_BYTES}",
                "local SHORT_PAYLOAD_BYTES = 256 -- of 64 lanes: docs/tofino.md",
                f"local HALF_BYTES = {wire.HALF_BYTES}",
                f"local NO_BLOCK = 0x{wire.NO_BLOCK:x}",
                _table("KIND", [f"{kind.name} = {kind.value}" for kind in wire.FrameKind]),
                _table(
                    "FLAG", [f"{flag.name} = {flag.value.bit_length() - 1}" for flag in wire.Flag]
                ),
                _table("OFFSET", offsets),
                _table("kinds", [f'[{kind.value}] = "{kind.name}"' for kind in wire.FrameKind]),
                _table("formats", [f'[{lanes.value}] = "{lanes.name}"' for lanes in wire.Format]),
                _table(
                    "lane_bits", [f"[{lanes.value}] = {lanes.lane_bits}" for lanes in wire.Format]
                ),
                _table(
                    "flag_names",
                    [_flag_name(flag) for flag in wire.Flag],
                ),
                _table("fields", fields),
                "p4reduce.fields = fields",
                "",
                "local function add_header(tree, buffer)",
                *adds,
                "end",
            ]
        )
        + "\n"
        + BODY
    )
