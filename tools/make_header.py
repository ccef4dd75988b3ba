# SPDX-License-Identifier: Apache-2.0
"""Write all that is made of `p4reduce.wire.header`; `--check`: say what is stale.

The files are committed, so nobody needs this to build or run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import make_dissector
from p4reduce.wire import format as wire
from p4reduce.wire import header
from p4reduce.wire.header import HEADER_FIELDS, Flag, Format, FrameKind

ROOT = Path(__file__).resolve().parent.parent
P4 = ROOT / "p4src" / "common" / "header.p4"
C = ROOT / "native" / "p4reduce_native" / "csrc" / "worker" / "header.h"
LUA = ROOT / "wireshark" / "p4reduce.lua"
PAGE = ROOT / "docs" / "protocol.md"
WRITTEN = "Written by `make header` from worker/p4reduce/wire/header.py: change that, not this."


def outputs() -> dict[Path, str]:
    """Return what the files ought to hold."""
    return {
        P4: p4_source(),
        C: c_source(),
        LUA: make_dissector.dissector(),
        PAGE: page(PAGE.read_text()),
    }


# -- P4 -------------------------------------------------------------------------------------------


def p4_source() -> str:
    """Return the P4 program's part: types, constants, the header."""
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// The aggregation header.",
        f"// {WRITTEN}",
        "#ifndef P4REDUCE_HEADER",
        "#define P4REDUCE_HEADER",
        "",
        *_aligned(_p4_types()),
        "",
        f"const bit<16> AGGREGATION_PORT    = 0x{header.AGGREGATION_PORT:X};",
        f"const bit<4>  AGGREGATION_VERSION = {header.AGGREGATION_VERSION};",
        "",
        *_aligned((f"const bit<4> KIND_{kind.name}", f"= {kind.value};", "") for kind in FrameKind),
        "",
        *_p4_flags(),
        "",
        *_aligned(
            (
                f"const bit<8> FORMAT_{each.name}",
                f"= {each.value};",
                f"{header.FORMATS[each].lane_bits} bits: {header.FORMATS[each].meaning}",
            )
            for each in Format
        ),
        "",
        f"const bit<16> AGG_BYTES = {header.AGG_BYTES};",
        "",
        '// docs/protocol.md, "Header".',
        "header aggregation_h {",
        *(f"    {_p4_type(field):<7} {field.name};" for field in HEADER_FIELDS),
        "}",
        "",
        "#endif  // P4REDUCE_HEADER",
    ]
    return "\n".join(lines) + "\n"


def _p4_type(field: header.HeaderField) -> str:
    return f"{field.p4_type}_t" if field.p4_type else f"bit<{field.bits}>"


def _p4_types() -> Iterator[tuple[str, str, str]]:
    seen: set[str] = set()
    for field in HEADER_FIELDS:
        if field.p4_type and field.p4_type not in seen:
            seen.add(field.p4_type)
            yield f"typedef bit<{field.bits}>", f"{field.p4_type}_t;", field.p4_meaning


def _p4_flags() -> Iterator[str]:
    width = max(map(len, Flag.__members__))
    for name, flag in Flag.__members__.items():
        comment = header.FLAGS[name].program
        if comment:
            yield from _wrapped(f"{comment}.")
        yield f"const bit<8> FLAG_{name:<{width}} = 0x{flag:02x};"


def _wrapped(text: str, prefix: str = "// ", width: int = 100) -> Iterator[str]:
    line = prefix.rstrip()
    for word in text.split():
        if len(line) + 1 + len(word) > width:
            yield line
            line = prefix.rstrip()
        line += f" {word}"
    yield line


def _aligned(rows: Iterator[tuple[str, str, str]]) -> Iterator[str]:
    """Columns below each other, the last one as a comment."""
    columns = list(rows)
    first = max(len(row[0]) for row in columns)
    second = max(len(row[1]) for row in columns)
    for one, two, comment in columns:
        row = f"{one:<{first}} {two:<{second}}"
        yield f"{row}  // {comment}" if comment else row.rstrip()


# -- C --------------------------------------------------------------------------------------------

_WIDTHS = (8, 16, 32, 64)


def c_source() -> str:
    """Return the worker's part: offsets, constants, and how fields are read and written."""
    widest = max(8 * header.PAYLOAD_BYTES // each.lane_bits for each in Format)
    lines = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        f"/* The aggregation header.\n * {WRITTEN} */",
        "#ifndef P4R_HEADER_H",
        "#define P4R_HEADER_H",
        "",
        "#include <stdint.h>",
        "",
        "/* In a frame, from Ethernet on. */",
        f"#define P4R_AGG_OFFSET {wire.AGG_OFFSET}",
        f"#define P4R_AGG_BYTES {header.AGG_BYTES}",
        f"#define P4R_AGG_PORT 0x{header.AGGREGATION_PORT:x}u",
        f"#define P4R_FLAGS_AT {_flags_at()}",
        f"#define P4R_PAYLOAD_OFFSET {wire.PAYLOAD_OFFSET}",
        f"#define P4R_EMPTY_FRAME {wire.EMPTY_FRAME_BYTES}",
        "",
        "/* Frames of 64 lanes are another compilation: p4reduce_native/frame_lanes.py. */",
        "#ifndef P4R_PAYLOAD_BYTES",
        f"#define P4R_PAYLOAD_BYTES {header.PAYLOAD_BYTES}",
        "#endif",
        "#define P4R_HALF_FRAME (P4R_PAYLOAD_OFFSET + P4R_PAYLOAD_BYTES / 2)",
        "#define P4R_WHOLE_FRAME (P4R_PAYLOAD_OFFSET + P4R_PAYLOAD_BYTES)",
        f"#define P4R_MOST_LANES {widest} /* in a block */",
        "",
        f"#define P4R_VERSION {header.AGGREGATION_VERSION}u",
        f"#define P4R_NO_BLOCK 0x{header.NO_BLOCK:x}u",
        f"#define P4R_NONFINITE_EXPONENT {header.NONFINITE_EXPONENT}u",
        f"#define P4R_FLOAT_LANES 0x{header.FLOAT_LANES:x}u /* in a tag */",
        "",
        *(f"#define P4R_KIND_{kind.name} {kind.value}u" for kind in FrameKind),
        "",
        *(f"#define P4R_FLAG_{name} 0x{flag:02x}u" for name, flag in Flag.__members__.items()),
        "",
        *(f"#define P4R_FORMAT_{each.name} {each.value}u" for each in Format),
        "",
        "/* What each field holds; those left out are 0. */",
        "struct p4r_header {",
        *(f"    {_c_type(field.bits)} {field.name};" for field in HEADER_FIELDS),
        "};",
        "",
        *_c_readers(),
        *_c_writer(),
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _c_type(bits: int) -> str:
    return f"uint{next(width for width in _WIDTHS if bits <= width)}_t"


def _places() -> Iterator[tuple[header.HeaderField, int, int]]:
    """Each field with its offset in the frame, in bytes, and what it is shifted by there."""
    bits = 0
    for field in HEADER_FIELDS:
        yield field, wire.AGG_OFFSET + bits // 8, -(bits + field.bits) % 8
        bits += field.bits


def _flags_at() -> int:
    return next(offset for field, offset, _ in _places() if field.name == "flags")


def _c_readers() -> Iterator[str]:
    for field, offset, shift in _places():
        size = max(1, field.bits // 8)
        kind = _c_type(field.bits)
        head = f"static inline {kind} p4r_get_{field.name}(const uint8_t *frame)"
        if size == 1:
            value = f"frame[{offset}]"
            if field.bits % 8:
                value += f" >> {shift}" * bool(shift) + f" & 0x{(1 << field.bits) - 1:x}"
            yield f"{head} {{ return {value}; }}"
        else:
            yield head
            yield "{"
            yield f"    {kind} value = frame[{offset}];"
            for place in range(1, size):
                yield f"    value = ({kind})(value << 8 | frame[{offset + place}]);"
            yield "    return value;"
            yield "}"
        yield ""


def _c_writer() -> Iterator[str]:
    yield "static inline void p4r_put_header(uint8_t *frame, const struct p4r_header *header)"
    yield "{"
    shared: list[str] = []
    for field, offset, shift in _places():
        if field.bits % 8:
            shared.append(f"header->{field.name} << {shift}" if shift else f"header->{field.name}")
            if not shift:
                yield f"    frame[{offset}] = (uint8_t)({' | '.join(shared)});"
                shared = []
            continue
        size = field.bits // 8
        for place in range(size):
            down = 8 * (size - 1 - place)
            value = f"header->{field.name}"
            if down:
                yield f"    frame[{offset + place}] = (uint8_t)({value} >> {down});"
            else:
                cast = "(uint8_t)" if size > 1 else ""
                yield f"    frame[{offset + place}] = {cast}{value};"
    yield "}"


# -- The page -------------------------------------------------------------------------------------


def page(text: str) -> str:
    """Return docs/protocol.md with what stands between its marks made again."""
    for name, body in (("drawing", _drawing()), ("fields", _tables())):
        begin, end = f"<!-- header: {name} -->\n", f"<!-- /header: {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            sys.exit(f"{PAGE}: {begin.strip()} and {end} must each be there once")
        before, _, rest = text.partition(begin)
        text = before + begin + body + end + rest.partition(end)[2]
    return text


_BITS = 32  # in a row of the drawing; each takes two characters


def _drawing() -> str:
    rows: list[list[header.HeaderField]] = [[]]
    lines = [
        " " + "".join(f"{bit // 10} " if not bit % 10 else "  " for bit in range(_BITS)).rstrip(),
        " " + " ".join(str(bit % 10) for bit in range(_BITS)),
    ]
    for field in HEADER_FIELDS:
        rows[-1].append(field)
        if sum(each.bits for each in rows[-1]) >= _BITS:
            rows.append([])
    for above, row in zip([[], *rows], rows[:-1], strict=False):
        lines.append(_rule(above, row))
        lines.append("|" + "|".join(_name(each).center(_wide(each)) for each in row) + "|")
        lines += ["|" + " " * (2 * _BITS - 1) + "|"] * (sum(each.bits for each in row) // _BITS - 1)
    lines.append(_rule(rows[-2], []))
    return "```\n" + "\n".join(lines) + "\n```\n"


def _wide(field: header.HeaderField) -> int:
    return 2 * min(field.bits, _BITS) - 1


def _rule(above: list[header.HeaderField], below: list[header.HeaderField]) -> str:
    """The line between two rows, with a cross where a field of either ends."""
    ends = {0, 2 * _BITS}
    for row in (above, below):
        at = 0
        for field in row:
            at += _wide(field) + 1
            ends.add(at)
    return "".join("+" if place in ends else "-" for place in range(2 * _BITS + 1))


def _name(field: header.HeaderField) -> str:
    return field.name.replace("_", " ")


def _tables() -> str:
    fields = [(_name(one), str(one.bits), one.writer, one.meaning) for one in HEADER_FIELDS]
    kinds = [(kind.name, str(kind.value), header.KINDS[kind]) for kind in FrameKind]
    flags = [
        (name, f"0x{flag:02x}", header.FLAGS[name].frames, header.FLAGS[name].meaning)
        for name, flag in Flag.__members__.items()
    ]
    formats = [
        (each.name, str(each.value), str(each.lane_bits), header.FORMATS[each].meaning)
        for each in Format
    ]
    return "\n".join(
        [
            _table(("field", "bits", "written by", "meaning"), fields),
            _table(("kind", "number", "meaning"), kinds),
            _table(("flag", "bit", "in", "meaning"), flags),
            _table(("format", "number", "bits of a lane", "lanes"), formats),
        ]
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(
        "|" + "|".join(f" {cell} " if cell != "---" else cell for cell in row) + "|\n"
        for row in lines
    )


# -- The command ----------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is stale")
    check = parser.parse_args().check
    stale = [path for path, text in outputs().items() if not _holds(path, text)]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not what the header's table gives: `make header`")
        else:
            path.write_text(outputs()[path])
            print(path.relative_to(ROOT))
    return int(check and bool(stale))


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
