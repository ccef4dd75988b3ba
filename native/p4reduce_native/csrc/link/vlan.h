/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel takes a VLAN tag out of a frame of a packet socket, and says which one (PACKET_AUXDATA). */
#ifndef P4R_LINK_VLAN_H
#define P4R_LINK_VLAN_H

#include <linux/if_packet.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#define P4R_VLAN_TAG_BYTES 4

union p4r_auxdata {
    struct cmsghdr header;
    uint8_t bytes[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
};

/* Puts the tag back into a frame of `length` bytes, which then begins P4R_VLAN_TAG_BYTES earlier.
 * Returns how many bytes it has put there; 0: there was no tag. */
static inline size_t p4r_vlan_put_back(uint8_t *frame, size_t length, struct msghdr *message)
{
    enum { MAC_PAIR_BYTES = 12, ETHERTYPE_VLAN = 0x8100 };
    const struct cmsghdr *header = CMSG_FIRSTHDR(message);
    struct tpacket_auxdata aux;
    if (length < MAC_PAIR_BYTES || header == NULL || header->cmsg_level != SOL_PACKET ||
        header->cmsg_type != PACKET_AUXDATA)
        return 0;
    memcpy(&aux, CMSG_DATA(header), sizeof aux);
    if ((aux.tp_status & TP_STATUS_VLAN_VALID) == 0)
        return 0;
    const uint16_t tpid =
        aux.tp_status & TP_STATUS_VLAN_TPID_VALID ? aux.tp_vlan_tpid : ETHERTYPE_VLAN;
    const uint8_t tag[P4R_VLAN_TAG_BYTES] = {(uint8_t)(tpid >> 8), (uint8_t)tpid,
                                             (uint8_t)(aux.tp_vlan_tci >> 8),
                                             (uint8_t)aux.tp_vlan_tci};
    memmove(frame - P4R_VLAN_TAG_BYTES, frame, MAC_PAIR_BYTES);
    memcpy(frame - P4R_VLAN_TAG_BYTES + MAC_PAIR_BYTES, tag, sizeof tag);
    return P4R_VLAN_TAG_BYTES;
}

#endif
