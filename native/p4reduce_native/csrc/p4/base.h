/* SPDX-License-Identifier: Apache-2.0 */
/* What all run-time pieces of compiled P4 programs need. */
#ifndef P4R_P4_BASE_H
#define P4R_P4_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 p4r_u128;
__extension__ typedef __int128 p4r_i128;

#define P4R_INLINE static inline __attribute__((always_inline, unused))
#define P4R_UNUSED __attribute__((unused))

/* Before a loop whose iterations are independent, each being one limb of a wide field. */
#if defined(__clang__)
#define P4R_LIMBS _Pragma("clang loop vectorize(assume_safety)")
#pragma clang diagnostic ignored "-Wpass-failed"
#else
#define P4R_LIMBS _Pragma("GCC ivdep")
#endif

#endif
