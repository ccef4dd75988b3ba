/* SPDX-License-Identifier: Apache-2.0 */
/* The aggregation header.
 * Written by `make header` from worker/p4reduce/wire/header.py: change that, not this. */
#ifndef P4R_HEADER_H
#define P4R_HEADER_H

#include <stdint.h>

/* In a frame, from Ethernet on. */
#define P4R_AGG_OFFSET 42
#define P4R_AGG_BYTES 36
#define P4R_AGG_PORT 0xbee0u
#define P4R_FLAGS_AT 43
#define P4R_PAYLOAD_OFFSET 78
#define P4R_EMPTY_FRAME 78

/* Frames of 64 lanes are another compilation: p4reduce_native/frame_lanes.py. */
#ifndef P4R_PAYLOAD_BYTES
#define P4R_PAYLOAD_BYTES 1024
#endif
#define P4R_HALF_FRAME (P4R_PAYLOAD_OFFSET + P4R_PAYLOAD_BYTES / 2)
#define P4R_WHOLE_FRAME (P4R_PAYLOAD_OFFSET + P4R_PAYLOAD_BYTES)
#define P4R_MOST_LANES 2048 /* in a block */

#define P4R_VERSION 1u
#define P4R_NO_BLOCK 0xffffffffu
#define P4R_NONFINITE_EXPONENT 255u
#define P4R_FLOAT_LANES 0x80000000u /* in a tag */

#define P4R_KIND_CONTRIBUTE 0u
#define P4R_KIND_RESULT 1u
#define P4R_KIND_STATUS 2u
#define P4R_KIND_HELLO 8u

#define P4R_FLAG_PAYLOAD 0x01u
#define P4R_FLAG_OVERFLOW 0x02u
#define P4R_FLAG_NONFINITE 0x04u
#define P4R_FLAG_MISMATCH 0x08u
#define P4R_FLAG_RETRANSMISSION 0x10u
#define P4R_FLAG_PADDED 0x20u
#define P4R_FLAG_FIRST_HALF 0x40u
#define P4R_FLAG_TELL_ALL 0x40u
#define P4R_FLAG_SECOND_HALF 0x80u
#define P4R_FLAG_FOR_ONE 0x80u

#define P4R_FORMAT_INT32 0u
#define P4R_FORMAT_INT16 1u
#define P4R_FORMAT_INT8 2u
#define P4R_FORMAT_WRAP32 3u
#define P4R_FORMAT_INT4 4u

/* What each field holds; those left out are 0. */
struct p4r_header {
    uint8_t version;
    uint8_t kind;
    uint8_t flags;
    uint16_t rank;
    uint32_t job;
    uint16_t slot;
    uint8_t format;
    uint8_t next_exponent;
    uint32_t round;
    uint32_t block;
    uint32_t next_block;
    uint32_t tag;
    uint64_t contributors;
};

static inline uint8_t p4r_get_version(const uint8_t *frame) { return frame[42] >> 4 & 0xf; }

static inline uint8_t p4r_get_kind(const uint8_t *frame) { return frame[42] & 0xf; }

static inline uint8_t p4r_get_flags(const uint8_t *frame) { return frame[43]; }

static inline uint16_t p4r_get_rank(const uint8_t *frame)
{
    uint16_t value = frame[44];
    value = (uint16_t)(value << 8 | frame[45]);
    return value;
}

static inline uint32_t p4r_get_job(const uint8_t *frame)
{
    uint32_t value = frame[46];
    value = (uint32_t)(value << 8 | frame[47]);
    value = (uint32_t)(value << 8 | frame[48]);
    value = (uint32_t)(value << 8 | frame[49]);
    return value;
}

static inline uint16_t p4r_get_slot(const uint8_t *frame)
{
    uint16_t value = frame[50];
    value = (uint16_t)(value << 8 | frame[51]);
    return value;
}

static inline uint8_t p4r_get_format(const uint8_t *frame) { return frame[52]; }

static inline uint8_t p4r_get_next_exponent(const uint8_t *frame) { return frame[53]; }

static inline uint32_t p4r_get_round(const uint8_t *frame)
{
    uint32_t value = frame[54];
    value = (uint32_t)(value << 8 | frame[55]);
    value = (uint32_t)(value << 8 | frame[56]);
    value = (uint32_t)(value << 8 | frame[57]);
    return value;
}

static inline uint32_t p4r_get_block(const uint8_t *frame)
{
    uint32_t value = frame[58];
    value = (uint32_t)(value << 8 | frame[59]);
    value = (uint32_t)(value << 8 | frame[60]);
    value = (uint32_t)(value << 8 | frame[61]);
    return value;
}

static inline uint32_t p4r_get_next_block(const uint8_t *frame)
{
    uint32_t value = frame[62];
    value = (uint32_t)(value << 8 | frame[63]);
    value = (uint32_t)(value << 8 | frame[64]);
    value = (uint32_t)(value << 8 | frame[65]);
    return value;
}

static inline uint32_t p4r_get_tag(const uint8_t *frame)
{
    uint32_t value = frame[66];
    value = (uint32_t)(value << 8 | frame[67]);
    value = (uint32_t)(value << 8 | frame[68]);
    value = (uint32_t)(value << 8 | frame[69]);
    return value;
}

static inline uint64_t p4r_get_contributors(const uint8_t *frame)
{
    uint64_t value = frame[70];
    value = (uint64_t)(value << 8 | frame[71]);
    value = (uint64_t)(value << 8 | frame[72]);
    value = (uint64_t)(value << 8 | frame[73]);
    value = (uint64_t)(value << 8 | frame[74]);
    value = (uint64_t)(value << 8 | frame[75]);
    value = (uint64_t)(value << 8 | frame[76]);
    value = (uint64_t)(value << 8 | frame[77]);
    return value;
}

static inline void p4r_put_header(uint8_t *frame, const struct p4r_header *header)
{
    frame[42] = (uint8_t)(header->version << 4 | header->kind);
    frame[43] = header->flags;
    frame[44] = (uint8_t)(header->rank >> 8);
    frame[45] = (uint8_t)header->rank;
    frame[46] = (uint8_t)(header->job >> 24);
    frame[47] = (uint8_t)(header->job >> 16);
    frame[48] = (uint8_t)(header->job >> 8);
    frame[49] = (uint8_t)header->job;
    frame[50] = (uint8_t)(header->slot >> 8);
    frame[51] = (uint8_t)header->slot;
    frame[52] = header->format;
    frame[53] = header->next_exponent;
    frame[54] = (uint8_t)(header->round >> 24);
    frame[55] = (uint8_t)(header->round >> 16);
    frame[56] = (uint8_t)(header->round >> 8);
    frame[57] = (uint8_t)header->round;
    frame[58] = (uint8_t)(header->block >> 24);
    frame[59] = (uint8_t)(header->block >> 16);
    frame[60] = (uint8_t)(header->block >> 8);
    frame[61] = (uint8_t)header->block;
    frame[62] = (uint8_t)(header->next_block >> 24);
    frame[63] = (uint8_t)(header->next_block >> 16);
    frame[64] = (uint8_t)(header->next_block >> 8);
    frame[65] = (uint8_t)header->next_block;
    frame[66] = (uint8_t)(header->tag >> 24);
    frame[67] = (uint8_t)(header->tag >> 16);
    frame[68] = (uint8_t)(header->tag >> 8);
    frame[69] = (uint8_t)header->tag;
    frame[70] = (uint8_t)(header->contributors >> 56);
    frame[71] = (uint8_t)(header->contributors >> 48);
    frame[72] = (uint8_t)(header->contributors >> 40);
    frame[73] = (uint8_t)(header->contributors >> 32);
    frame[74] = (uint8_t)(header->contributors >> 24);
    frame[75] = (uint8_t)(header->contributors >> 16);
    frame[76] = (uint8_t)(header->contributors >> 8);
    frame[77] = (uint8_t)header->contributors;
}

#endif
