-- SPDX-License-Identifier: Apache-2.0
-- Wireshark's dissector of p4reduce (docs/protocol.md).
-- Written by `make header` from worker/p4reduce/wire/header.py: change that, not this.
--
--   wireshark -X lua_script:wireshark/p4reduce.lua capture.pcap

local p4reduce = Proto("p4reduce", "p4reduce in-network aggregation")

local PORT = 48864
local VERSION = 1
local HEADER_BYTES = 36
local PAYLOAD_BYTES = 1024
local SHORT_PAYLOAD_BYTES = 256 -- of 64 lanes: docs/tofino.md
local HALF_BYTES = 512
local NO_BLOCK = 0xffffffff
local KIND = {
    CONTRIBUTE = 0,
    RESULT = 1,
    STATUS = 2,
    HELLO = 8,
}

local FLAG = {
    PAYLOAD = 0,
    OVERFLOW = 1,
    NONFINITE = 2,
    MISMATCH = 3,
    RETRANSMISSION = 4,
    PADDED = 5,
    FIRST_HALF = 6,
    SECOND_HALF = 7,
}

local OFFSET = {
    version = 0,
    kind = 0,
    flags = 1,
    rank = 2,
    job = 4,
    slot = 8,
    format = 10,
    next_exponent = 11,
    round = 12,
    block = 16,
    next_block = 20,
    tag = 24,
    contributors = 28,
}

local kinds = {
    [0] = "CONTRIBUTE",
    [1] = "RESULT",
    [2] = "STATUS",
    [8] = "HELLO",
}

local formats = {
    [0] = "INT32",
    [1] = "INT16",
    [2] = "INT8",
    [3] = "WRAP32",
    [4] = "INT4",
}

local lane_bits = {
    [0] = 32,
    [1] = 16,
    [2] = 8,
    [3] = 32,
    [4] = 4,
}

local flag_names = {
    { bit = FLAG.PAYLOAD, name = "PAYLOAD" },
    { bit = FLAG.OVERFLOW, name = "OVERFLOW" },
    { bit = FLAG.NONFINITE, name = "NONFINITE" },
    { bit = FLAG.MISMATCH, name = "MISMATCH" },
    { bit = FLAG.RETRANSMISSION, name = "RETRANSMISSION" },
    { bit = FLAG.PADDED, name = "PADDED" },
    { bit = FLAG.FIRST_HALF, name = "FIRST_HALF", otherwise = "TELL_ALL" },
    { bit = FLAG.SECOND_HALF, name = "SECOND_HALF", otherwise = "FOR_ONE" },
}

local fields = {
    version = ProtoField.uint8("p4reduce.version", "Version", base.DEC, nil, 0xf0),
    kind = ProtoField.uint8("p4reduce.kind", "Kind", base.DEC, kinds, 0x0f),
    flags = ProtoField.uint8("p4reduce.flags", "Flags", base.HEX),
    flag_payload = ProtoField.bool("p4reduce.flags.payload", "PAYLOAD", 8, nil, 0x01),
    flag_overflow = ProtoField.bool("p4reduce.flags.overflow", "OVERFLOW", 8, nil, 0x02),
    flag_nonfinite = ProtoField.bool("p4reduce.flags.nonfinite", "NONFINITE", 8, nil, 0x04),
    flag_mismatch = ProtoField.bool("p4reduce.flags.mismatch", "MISMATCH", 8, nil, 0x08),
    flag_retransmission = ProtoField.bool("p4reduce.flags.retransmission", "RETRANSMISSION", 8, nil, 0x10),
    flag_padded = ProtoField.bool("p4reduce.flags.padded", "PADDED", 8, nil, 0x20),
    flag_first_half = ProtoField.bool("p4reduce.flags.first_half", "FIRST_HALF", 8, nil, 0x40),
    flag_second_half = ProtoField.bool("p4reduce.flags.second_half", "SECOND_HALF", 8, nil, 0x80),
    rank = ProtoField.uint16("p4reduce.rank", "Rank", base.DEC),
    job = ProtoField.uint32("p4reduce.job", "Job (incarnation)", base.DEC),
    slot = ProtoField.uint16("p4reduce.slot", "Slot", base.DEC),
    format = ProtoField.uint8("p4reduce.format", "Format", base.DEC, formats),
    next_exponent = ProtoField.uint8("p4reduce.next_exponent", "Next exponent (float32, biased)", base.DEC),
    round = ProtoField.uint32("p4reduce.round", "Round", base.DEC),
    block = ProtoField.uint32("p4reduce.block", "Block", base.HEX),
    next_block = ProtoField.uint32("p4reduce.next_block", "Next block", base.HEX),
    tag = ProtoField.uint32("p4reduce.tag", "Tag of the collective", base.HEX),
    contributors = ProtoField.uint64("p4reduce.contributors", "Contributors (HELLO: nonce)", base.HEX),
    payload = ProtoField.bytes("p4reduce.payload", "Payload"),
    padding = ProtoField.bytes("p4reduce.padding", "Padding"),
    lane32 = ProtoField.int32("p4reduce.lane", "Lane", base.DEC),
    lane16 = ProtoField.int16("p4reduce.lane", "Lane", base.DEC),
    lane8 = ProtoField.int8("p4reduce.lane", "Lane", base.DEC),
    lane4 = ProtoField.int8("p4reduce.lane", "Lane", base.DEC),
}

p4reduce.fields = fields

local function add_header(tree, buffer)
    tree:add(fields.version, buffer(0, 1))
    tree:add(fields.kind, buffer(0, 1))
    local flags = tree:add(fields.flags, buffer(1, 1))
    flags:add(fields.flag_payload, buffer(1, 1))
    flags:add(fields.flag_overflow, buffer(1, 1))
    flags:add(fields.flag_nonfinite, buffer(1, 1))
    flags:add(fields.flag_mismatch, buffer(1, 1))
    flags:add(fields.flag_retransmission, buffer(1, 1))
    flags:add(fields.flag_padded, buffer(1, 1))
    flags:add(fields.flag_first_half, buffer(1, 1))
    flags:add(fields.flag_second_half, buffer(1, 1))
    tree:add(fields.rank, buffer(2, 2))
    tree:add(fields.job, buffer(4, 4))
    tree:add(fields.slot, buffer(8, 2))
    tree:add(fields.format, buffer(10, 1))
    tree:add(fields.next_exponent, buffer(11, 1))
    tree:add(fields.round, buffer(12, 4))
    tree:add(fields.block, buffer(16, 4))
    tree:add(fields.next_block, buffer(20, 4))
    tree:add(fields.tag, buffer(24, 4))
    tree:add(fields.contributors, buffer(28, 8))
end

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
