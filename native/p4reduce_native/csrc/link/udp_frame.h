/* SPDX-License-Identifier: Apache-2.0 */
/* Where UDP over IPv4 has its fields in a frame, from the Ethernet header on. */
#ifndef P4R_LINK_UDP_FRAME_H
#define P4R_LINK_UDP_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define HEADERS 42 /* Ethernet, IPv4 without options, UDP */
#define ETHER_TYPE 12
#define IP_HEADER 14
#define IP_LENGTH 16
#define IP_FRAGMENT 20
#define IP_PROTOCOL 23
#define IP_CHECKSUM 24
#define UDP_HEADER 34
#define UDP_SOURCE_PORT 34
#define UDP_DESTINATION_PORT 36
#define UDP_LENGTH 38
#define UDP_CHECKSUM 40

static inline unsigned read16(const uint8_t *bytes) { return (unsigned)bytes[0] << 8 | bytes[1]; }

/* Whether it is UDP over IPv4 with a valid length, without options and fragments. */
static inline int is_plain_udp(const uint8_t *bytes, size_t length)
{
    return length >= HEADERS && read16(bytes + ETHER_TYPE) == 0x0800 && bytes[IP_HEADER] == 0x45 &&
           (read16(bytes + IP_FRAGMENT) & 0x3FFF) == 0 && bytes[IP_PROTOCOL] == 17 &&
           read16(bytes + IP_LENGTH) == length - IP_HEADER &&
           read16(bytes + UDP_LENGTH) == length - UDP_HEADER;
}

#endif
