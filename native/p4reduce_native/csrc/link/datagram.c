/* SPDX-License-Identifier: Apache-2.0 */
/* A link over UDP: a connected socket, whose peer has shown by a handshake (Python's,
 * udp_handshake.py) that it is where it says it is, and has got a token by it.
 *
 *   datagram  token (8 bytes), type (1), 0, 0, 0, then for FRAMES records as in a batch
 *
 * Nobody who cannot read the path knows the token, so a datagram without it is counted as a
 * stranger's and has no effect. But for one: the greeting that the peer was taken in by. Its answer
 * may have been lost, so it is sent again.
 */
#include "link_impl.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD 12
#define GREETING_BYTES 128 /* greeting and answer have so many at most */
#define REFUSALS 3         /* so often must the other host say that nobody listens there */
#define MOST_AT_ONCE 64
#define IP_AND_UDP 28

enum type { FRAMES = 0, PING = 1, PONG = 2, BYE = 3 };

struct p4r_datagrams {
    uint8_t token[8];
    uint32_t bytes;       /* of a datagram, at most */
    int frames_each;      /* in a datagram, at most */
    int at_once;          /* datagrams of one system call */
    int unheard, refused; /* pokes and refusals since the peer was heard */
    int has_left;
    uint64_t strangers;
    uint8_t greeting[GREETING_BYTES], answer[GREETING_BYTES];
    size_t greeting_bytes, answer_bytes;
    uint8_t *rows; /* `at_once` of `bytes` + 1 */
    struct iovec in_vectors[MOST_AT_ONCE];
    struct mmsghdr in_messages[MOST_AT_ONCE];
    /* Per frame the head of its record, which for the first one follows the datagram's. */
    uint8_t heads[P4R_LINK_FRAMES][HEAD + 3 + P4R_RECORD_HEAD];
};

static int frames_in(uint32_t bytes)
{
    const uint32_t frames = bytes / 256;
    return frames < 1 ? 1 : frames > P4R_LINK_FRAMES ? P4R_LINK_FRAMES : (int)frames;
}

static struct p4r_datagrams *make(const uint8_t *token, uint32_t bytes)
{
    struct p4r_datagrams *own = calloc(1, sizeof *own);
    if (own == NULL)
        return NULL;
    memcpy(own->token, token, sizeof own->token);
    own->bytes = bytes;
    own->frames_each = frames_in(bytes);
    own->at_once = P4R_LINK_FRAMES / own->frames_each;
    const size_t stride = (size_t)bytes + 1;
    own->rows = malloc((size_t)own->at_once * stride);
    if (own->rows == NULL) {
        free(own);
        return NULL;
    }
    for (int i = 0; i < own->at_once; i++) {
        own->in_vectors[i] = (struct iovec){own->rows + (size_t)i * stride, stride};
        own->in_messages[i].msg_hdr =
            (struct msghdr){.msg_iov = &own->in_vectors[i], .msg_iovlen = 1};
    }
    return own;
}

struct p4r_link *p4r_link_over_datagrams(int fd, const uint8_t *token, uint32_t bytes,
                                         const uint8_t *greeting, uint32_t greeting_bytes,
                                         const uint8_t *answer, uint32_t answer_bytes)
{
    struct p4r_link *link = p4r_link_accept(fd, 0, 0);
    if (link == NULL)
        return NULL;
    const int fits = bytes >= HEAD + P4R_RECORD_HEAD && bytes < P4R_BATCH_BYTES &&
                     greeting_bytes <= GREETING_BYTES && answer_bytes <= GREETING_BYTES;
    link->datagrams = fits ? make(token, bytes) : NULL;
    if (link->datagrams == NULL) {
        p4r_link_free(link);
        return NULL;
    }
    link->kind = P4R_LINK_DATAGRAM;
    if (greeting_bytes != 0) {
        memcpy(link->datagrams->greeting, greeting, greeting_bytes);
        memcpy(link->datagrams->answer, answer, answer_bytes);
    }
    link->datagrams->greeting_bytes = greeting_bytes;
    link->datagrams->answer_bytes = answer_bytes;
    return link;
}

/* -- What has no frames --------------------------------------------------------------------------*/

static void send_bare(const struct p4r_link *link, enum type type)
{
    uint8_t head[HEAD] = {0};
    memcpy(head, link->datagrams->token, sizeof link->datagrams->token);
    head[8] = (uint8_t)type;
    /* Whatever becomes of it: a later one does the same. */
    (void)!send(link->fd, head, sizeof head, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void p4r_datagrams_free(struct p4r_link *link)
{
    struct p4r_datagrams *own = link->datagrams;
    if (own == NULL)
        return;
    if (link->broken == 0)
        send_bare(link, BYE);
    free(own->rows);
    free(own);
}

int p4r_link_poke(struct p4r_link *link)
{
    struct p4r_datagrams *own = link->datagrams;
    if (own == NULL || link->broken != 0)
        return 0;
    if (own->unheard > 0)
        send_bare(link, PING);
    return own->unheard++;
}

uint64_t p4r_link_strangers(const struct p4r_link *link)
{
    return link->datagrams == NULL ? 0 : link->datagrams->strangers;
}

/* -- In ------------------------------------------------------------------------------------------*/

static int is_of_peer(const struct p4r_datagrams *own, const uint8_t *bytes, size_t length)
{
    if (length < HEAD)
        return 0;
    uint8_t difference = 0; /* all are compared, so that time tells nothing */
    for (size_t i = 0; i < sizeof own->token; i++)
        difference |= (uint8_t)(bytes[i] ^ own->token[i]);
    return difference == 0;
}

static int is_greeting(const struct p4r_datagrams *own, const uint8_t *bytes, size_t length)
{
    return length != 0 && length == own->greeting_bytes &&
           memcmp(bytes, own->greeting, length) == 0;
}

/* One datagram; returns how many frames it had. */
static int take_in(struct p4r_link *link, const uint8_t *bytes, size_t length,
                   struct p4r_frame *frames)
{
    struct p4r_datagrams *own = link->datagrams;
    if (!is_of_peer(own, bytes, length)) {
        if (is_greeting(own, bytes, length))
            (void)!send(link->fd, own->answer, own->answer_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        else
            own->strangers++;
        return 0;
    }
    own->unheard = own->refused = 0;
    switch (bytes[8]) {
    case FRAMES:
        return p4r_find_frames(bytes + HEAD, length - HEAD, frames, own->frames_each);
    case PING:
        send_bare(link, PONG);
        return 0;
    case BYE:
        own->has_left = 1;
        return 0;
    default:
        return 0;
    }
}

/* The path has become narrower than it was; the kernel knows how narrow. */
static void narrow(struct p4r_link *link)
{
    struct p4r_datagrams *own = link->datagrams;
    int mtu = 0;
    socklen_t size = sizeof mtu;
    uint32_t bytes = own->bytes / 2;
    if (getsockopt(link->fd, IPPROTO_IP, IP_MTU, &mtu, &size) == 0 && mtu > IP_AND_UDP + HEAD &&
        (uint32_t)(mtu - IP_AND_UDP) < own->bytes)
        bytes = (uint32_t)(mtu - IP_AND_UDP);
    own->bytes = bytes;
    if (frames_in(bytes) < own->frames_each)
        own->frames_each = frames_in(bytes);
}

/* An error of the socket: that nobody listens there may be said by anybody, so it counts only when
 * it is said again and again, and nothing comes from the peer meanwhile. */
static int failed(struct p4r_link *link, int code)
{
    if (code == ECONNREFUSED)
        return ++link->datagrams->refused >= REFUSALS ? p4r_break(link, EPIPE) : 0;
    return p4r_is_full(code) || code == EMSGSIZE || code == EHOSTUNREACH || code == ENETUNREACH
               ? 0
               : p4r_break(link, code);
}

int p4r_datagrams_receive(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    (void)most; /* is P4R_LINK_FRAMES at least, and at_once * frames_each no more */
    struct p4r_datagrams *own = link->datagrams;
    if (own->has_left)
        return p4r_break(link, EPIPE);
    int messages;
    do
        messages = recvmmsg(link->fd, own->in_messages, (unsigned)own->at_once, MSG_DONTWAIT, NULL);
    while (messages < 0 && errno == EINTR);
    if (messages < 0)
        return failed(link, errno);
    int count = 0;
    for (int i = 0; i < messages; i++)
        count +=
            take_in(link, own->in_vectors[i].iov_base, own->in_messages[i].msg_len, frames + count);
    return own->has_left && count == 0 ? p4r_break(link, EPIPE) : count;
}

/* -- Out -----------------------------------------------------------------------------------------*/

/* Puts the first frames into one datagram; returns how many, at least one. */
static int put_together(struct p4r_link *link, const struct p4r_frame *frames, int count,
                        struct iovec *vectors, int first)
{
    struct p4r_datagrams *own = link->datagrams;
    size_t bytes = HEAD;
    int taken = 0;
    while (taken < count && taken < own->frames_each) {
        const struct p4r_frame *frame = &frames[taken];
        const size_t gap = taken != 0 ? (4 - bytes % 4) % 4 : 0;
        if (taken != 0 && bytes + gap + P4R_RECORD_HEAD + frame->length > own->bytes)
            break;
        uint8_t *head = own->heads[first + taken];
        size_t at = 0;
        if (taken == 0) {
            memcpy(head, own->token, sizeof own->token);
            memset(head + 8, 0, HEAD - 8);
            at = HEAD;
        }
        memset(head + at, 0, gap);
        at += gap;
        head[at++] = (uint8_t)(frame->length & 0xFF);
        head[at++] = (uint8_t)(frame->length >> 8);
        vectors[2 * taken] = (struct iovec){head, at};
        vectors[2 * taken + 1] = (struct iovec){(void *)(uintptr_t)frame->bytes, frame->length};
        bytes += gap + P4R_RECORD_HEAD + frame->length;
        taken++;
    }
    return taken;
}

int p4r_datagrams_send(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    int done = 0;
    while (done < count) {
        int ends[P4R_LINK_FRAMES], messages = 0, taken = 0;
        const int most = count - done < P4R_LINK_FRAMES ? count - done : P4R_LINK_FRAMES;
        while (taken < most) {
            struct iovec *vectors = &link->out_vectors[2 * taken];
            const int one = put_together(link, frames + done + taken, most - taken, vectors, taken);
            link->out_messages[messages].msg_hdr =
                (struct msghdr){.msg_iov = vectors, .msg_iovlen = 2 * (size_t)one};
            taken += one;
            ends[messages++] = taken;
        }
        const int sent =
            sendmmsg(link->fd, link->out_messages, (unsigned)messages, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            done += ends[sent - 1];
        } else if (errno == EMSGSIZE && ends[0] > 1) {
            narrow(link);
        } else if (errno == EMSGSIZE) { /* no path for a frame of this length */
            link->counts.tx_bad_length++;
            done++;
        } else if (errno != EINTR) {
            const int code = errno;
            const int error = failed(link, code);
            if (error != 0)
                return error;
            if (code != ECONNREFUSED)
                break;
        }
    }
    return done;
}
