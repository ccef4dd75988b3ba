/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes that stand for float32, in 28 bits instead of 32.
 *
 * A float32 has 24 significant bits. So has a lane that was made of one: a lane from 2^(23 + s) on is a
 * multiple of 2^s. It is sent as s (3 bits) and lane / 2^s (25 bits with its sign). A sum may have more
 * bits, but its receivers round it to float32, so it is rounded here already: to nearest, ties to even.
 * The top bit of a frame's tag says that its lanes are such (docs/protocol.md, "Words").
 *
 *   shortened     lane / 2^s: bits 0 to 15 of all lanes (LE), bits 16 to 23 of all lanes, and bit 24
 *                 with s above it, in 4 bits, for lanes i (lower half) and i + n/2 (upper half) */
#ifndef P4R_LINK_FLOAT_LANES_H
#define P4R_LINK_FLOAT_LANES_H

#include <stddef.h>
#include <stdint.h>

#include "common/frame.h"
#include "worker/header.h"

#define P4R_SHORTENED_MOST (P4R_PAYLOAD_BYTES / 8 * 7)

/* Writes what stands for the lanes of a frame. Returns how many bytes that is; 0: they go as they are,
 * since they do not stand for float32, or would not come back as the receiver needs them. */
size_t p4r_float_lanes_shorten(struct p4r_frame, uint8_t *shortened);

/* Writes the lanes. Returns how many bytes they are; 0: there is no such length. */
size_t p4r_float_lanes_restore(const uint8_t *shortened, size_t bytes, uint8_t *lanes);

#endif
