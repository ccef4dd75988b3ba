/* SPDX-License-Identifier: Apache-2.0 */
/* A frame that lies in somebody else's memory. */
#ifndef P4R_COMMON_FRAME_H
#define P4R_COMMON_FRAME_H

#include <stdint.h>

#define P4R_MIN_FRAME_BYTES 1 /* the program says what is too short for it */
#define P4R_MAX_FRAME_BYTES 2048
/* The distance between two rows of frames: room for one byte that shows a frame as too long and for a VLAN
 * tag; and no power of two, so that the headers of many frames do not share one set of a cache. */
#define P4R_ROW_BYTES 2112

/* In front of a frame in a row, so that what follows Ethernet is aligned. */
#define P4R_ROW_PAD 2

struct p4r_frame {
    const uint8_t *bytes;
    uint32_t length;
};

#endif
