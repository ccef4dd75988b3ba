/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of variable length, which have their bits as a number of limbs. */
#ifndef P4R_P4_VARBIT_H
#define P4R_P4_VARBIT_H

#include "wide.h"

/* `bits` bits of a frame, whole bytes, that begin `offset` (0..7) bits after `from`; `to` has
 * limbs for the longest field. */
static P4R_UNUSED void p4r_varbit_load(uint64_t *to, unsigned count, const uint8_t *from,
                                       unsigned offset, unsigned bits)
{
    const unsigned bytes = bits / 8;
    if (offset == 0) {
        p4r_wide_load(to, count, from, bytes);
        return;
    }
    p4r_wide_zero(to, count);
    for (unsigned i = 0; i < bytes; i++) {
        const unsigned below = bytes - 1 - i;
        const unsigned value = (unsigned)from[i] << 8 | from[i + 1];
        to[below / 8] |= (uint64_t)(value >> (8 - offset) & 0xFF) << below % 8 * 8;
    }
}

#endif
