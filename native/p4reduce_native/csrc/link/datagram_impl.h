/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of links over UDP share: datagram.c, datagram_in.c, datagram_out.c. */
#ifndef P4R_DATAGRAM_IMPL_H
#define P4R_DATAGRAM_IMPL_H

#include "float_lanes.h"
#include "headers.h"
#include "link_impl.h"
#include "path.h"

/* A record is a length (LE, 16 bits) and its frame, filled up to a multiple of 4: so the headers behind
 * Ethernet's 14 bytes lie at multiples of 4. */
#define P4R_RECORD_HEAD 2
#define P4R_RECORD_COMPRESSED 0x8000 /* in the length: the header is compressed, see headers.h */
#define P4R_RECORD_SHORTENED 0x4000  /* with it: the lanes are shortened, see float_lanes.h */
#define P4R_MESSAGE_BYTES 65536      /* room for a message, of one datagram or of many */
#define P4R_UDP_HEAD 12
/* Bytes that one call can send: a packet's, less IPv4's and UDP's heads. */
#define P4R_UDP_MOST P4R_LINK_RUN_BYTES
#define P4R_UDP_GREETING P4R_CONTROL_MESSAGE_BYTES /* the most bytes of greeting and answer */
#define P4R_UDP_REFUSALS 3  /* messages that nobody listens there, before they count */
#define P4R_UDP_ARRIVALS 16 /* messages of one call to receive, each of one datagram or of many */

/* <linux/udp.h>, which not every kernel's headers have in full. */
#define P4R_UDP_SEGMENT 103
#define P4R_UDP_GRO 104

enum p4r_udp_type {
    P4R_UDP_FRAMES = 0,
    P4R_UDP_PING = 1,
    P4R_UDP_PONG = 2,
    P4R_UDP_BYE = 3,
    P4R_UDP_CONTEXT = 4,   /* a number (LE, 16 bits), two zeros and a context, see headers.h */
    P4R_UDP_CONFIRMED = 5, /* the number of a stored context, what this end can do, a zero */
};
#define P4R_UDP_NUMBER 4 /* bytes in front of a context */
#define P4R_UDP_ABLE_AT 2
#define P4R_UDP_TAKES_SHORTENED 1

/* A control message with the size of segments: 16 bits when sent, an int when received. */
union p4r_segment_size {
    struct cmsghdr header;
    uint8_t bytes[CMSG_SPACE(sizeof(int))];
};

struct p4r_datagrams {
    uint8_t token[8];
    int unheard, refused;          /* keepalives and refusals since the peer was heard */
    int has_left, takes_shortened; /* the peer */
    struct p4r_path path;
    struct p4r_contexts in_contexts, out_contexts;
    struct p4r_datagram_counts counts;
    uint8_t greeting[P4R_UDP_GREETING], answer[P4R_UDP_GREETING];
    size_t greeting_bytes, answer_bytes;
    uint8_t control_message[P4R_UDP_GREETING]; /* the beginning of a handshake's message */
    size_t control_message_bytes;              /* all that it had; 0: there is none */

    /* What the last call received, and how far it has been taken apart: up to the datagram that
     * begins at `at` of `message`, and in it up to the record at `record` (0: not judged yet). */
    uint8_t *arrivals;
    int messages, message, gathers;
    size_t at, record;
    struct iovec in_vectors[P4R_UDP_ARRIVALS];
    struct mmsghdr in_messages[P4R_UDP_ARRIVALS];
    union p4r_segment_size in_sizes[P4R_UDP_ARRIVALS];

    uint64_t single_until_ns; /* segmentation was refused: one datagram per message until then */
    struct iovec out_vectors[2 * P4R_LINK_MOST];
    struct mmsghdr out_messages[P4R_LINK_MOST];
    union p4r_segment_size out_sizes[P4R_LINK_MOST];
    int ends[P4R_LINK_MOST]; /* frames up to the end of each message */
    /* Per frame the head of its record, which for the first one follows the datagram's, and what
     * stands for the frame's own head. */
    uint8_t heads[P4R_LINK_MOST][P4R_UDP_HEAD + 3 + P4R_RECORD_HEAD + P4R_COMPRESSED_MOST];
    uint8_t shortened[P4R_LINK_MOST][P4R_SHORTENED_MOST];
};

int p4r_datagrams_receive(struct p4r_link *, struct p4r_frame *, int most);
int p4r_datagrams_send(struct p4r_link *, const struct p4r_frame *, int count);
void p4r_datagrams_prepare_arrivals(struct p4r_datagrams *);
/* Sends a datagram without frames, with a body of at most a context; whatever becomes of it, a later one
 * does the same. */
void p4r_datagrams_say(const struct p4r_link *, enum p4r_udp_type, const uint8_t *body,
                       size_t length);
/* The same: a context's number, and the context or NULL. */
void p4r_datagrams_say_context(const struct p4r_link *, enum p4r_udp_type, uint16_t number,
                               const uint8_t *context);
/* An error of the socket. Returns 0, or minus an errno: it has ended the link, but for -EPIPE of a send
 * (see p4r_link_send). */
int p4r_datagrams_receive_failed(struct p4r_link *, int code);
int p4r_datagrams_send_failed(struct p4r_link *, int code);

#endif
