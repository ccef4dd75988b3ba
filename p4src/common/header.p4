// SPDX-License-Identifier: Apache-2.0
// The aggregation header.
// Written by `make header` from worker/p4reduce/wire/header.py: change that, not this.
#ifndef P4REDUCE_HEADER
#define P4REDUCE_HEADER

typedef bit<16> rank_t;
typedef bit<32> job_t;
typedef bit<16> slot_t;
typedef bit<32> round_t;
typedef bit<32> block_t;  // a block's number; all ones: none
typedef bit<64> ranks_t;  // one bit for each rank here, or for each switch below

const bit<16> AGGREGATION_PORT    = 0xBEE0;
const bit<4>  AGGREGATION_VERSION = 1;

const bit<4> KIND_CONTRIBUTE = 0;
const bit<4> KIND_RESULT     = 1;
const bit<4> KIND_STATUS     = 2;
const bit<4> KIND_HELLO      = 8;

const bit<8> FLAG_PAYLOAD        = 0x01;
const bit<8> FLAG_OVERFLOW       = 0x02;
const bit<8> FLAG_NONFINITE      = 0x04;
const bit<8> FLAG_MISMATCH       = 0x08;
const bit<8> FLAG_RETRANSMISSION = 0x10;
const bit<8> FLAG_PADDED         = 0x20;
const bit<8> FLAG_FIRST_HALF     = 0x40;
// FIRST_HALF's bit in a contribution, which has no halves: a status is for all ranks.
const bit<8> FLAG_TELL_ALL       = 0x40;
const bit<8> FLAG_SECOND_HALF    = 0x80;
// SECOND_HALF's bit in what a switch asks its parent, and in the status that answers: for the rank
// that asks for all, and for nobody else.
const bit<8> FLAG_FOR_ONE        = 0x80;

const bit<8> FORMAT_INT32  = 0;  // 32 bits: integers
const bit<8> FORMAT_INT16  = 1;  // 16 bits: integers
const bit<8> FORMAT_INT8   = 2;  // 8 bits: integers
const bit<8> FORMAT_WRAP32 = 3;  // 32 bits: as INT32, modulo 2³²: nothing overflows
const bit<8> FORMAT_INT4   = 4;  // 4 bits: integers, two in a byte, the first one in its upper half

const bit<16> AGG_BYTES = 36;

// docs/protocol.md, "Header".
header aggregation_h {
    bit<4>  version;
    bit<4>  kind;
    bit<8>  flags;
    rank_t  rank;
    job_t   job;
    slot_t  slot;
    bit<8>  format;
    bit<8>  next_exponent;
    round_t round;
    block_t block;
    block_t next_block;
    bit<32> tag;
    ranks_t contributors;
}

#endif  // P4REDUCE_HEADER
