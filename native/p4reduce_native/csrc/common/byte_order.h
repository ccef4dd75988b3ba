/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers between this machine's byte order and that of frames (big) or of datagrams' records (little). */
#ifndef P4R_COMMON_BYTE_ORDER_H
#define P4R_COMMON_BYTE_ORDER_H

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define P4R_BIG16(value) __builtin_bswap16(value)
#define P4R_BIG32(value) __builtin_bswap32(value)
#define P4R_BIG64(value) __builtin_bswap64(value)
#define P4R_LITTLE16(value) (value)
#else
#define P4R_BIG16(value) (value)
#define P4R_BIG32(value) (value)
#define P4R_BIG64(value) (value)
#define P4R_LITTLE16(value) __builtin_bswap16(value)
#endif

#endif
