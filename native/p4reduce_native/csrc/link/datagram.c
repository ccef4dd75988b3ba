/* SPDX-License-Identifier: Apache-2.0 */
/* A link over UDP: a connected socket, whose peer has shown by a handshake (Python's,
 * udp_handshake.py) that it is where it says it is, and has got a token by it.
 *
 *   datagram  token (8 bytes), type (1), 0, 0, 0, then
 *             for FRAMES records (datagram_impl.h); for PING and PONG a nonce (8 bytes) or nothing, and
 *             any number of zeros behind that of a PING; for CONTEXT and CONFIRMED see there
 *
 * A PING is answered by a PONG with the same nonce, a CONTEXT by CONFIRMED with its number. Nobody
 * who cannot read the path knows the token, so a datagram without it is counted as a stranger's and
 * has no effect. But for two: the greeting that the peer was taken in by, whose answer may have
 * been lost, so it is sent again; and messages of another handshake from the peer's address, which
 * are kept for Python: the peer may have been started again.
 */
#include "datagram_impl.h"

#include <assert.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

static struct p4r_datagrams *make(const uint8_t *token, uint32_t bytes, uint32_t probe_timeout_ms)
{
    struct p4r_datagrams *own = calloc(1, sizeof *own);
    if (own == NULL)
        return NULL;
    memcpy(own->token, token, sizeof own->token);
    p4r_path_init(&own->path, bytes, probe_timeout_ms);
    own->arrivals = malloc((size_t)P4R_UDP_ARRIVALS * P4R_MESSAGE_BYTES); /* touched as it fills */
    if (own->arrivals == NULL) {
        free(own);
        return NULL;
    }
    p4r_datagrams_prepare_arrivals(own);
    return own;
}

struct p4r_link *p4r_link_over_datagrams(int fd, const uint8_t *token, uint32_t bytes,
                                         const uint8_t *greeting, uint32_t greeting_bytes,
                                         const uint8_t *answer, uint32_t answer_bytes,
                                         uint32_t probe_timeout_ms, int *error)
{
    struct p4r_link *link = p4r_link_accept(fd, 0, 0, error);
    if (link == NULL)
        return NULL;
    const int on = 1;
    const int fits = bytes >= P4R_UDP_HEAD + P4R_RECORD_HEAD && bytes < P4R_MESSAGE_BYTES &&
                     greeting_bytes <= P4R_UDP_GREETING && answer_bytes <= P4R_UDP_GREETING;
    link->datagrams = fits ? make(token, bytes, probe_timeout_ms) : NULL;
    if (link->datagrams == NULL) {
        *error = fits ? ENOMEM : EINVAL;
        return p4r_unmake(link);
    }
    link->ops = &p4r_datagrams;
    if (greeting_bytes != 0) {
        memcpy(link->datagrams->greeting, greeting, greeting_bytes);
        memcpy(link->datagrams->answer, answer, answer_bytes);
    }
    link->datagrams->greeting_bytes = greeting_bytes;
    link->datagrams->answer_bytes = answer_bytes;
    /* A kernel that cannot give several datagrams at once gives them one by one. */
    (void)setsockopt(fd, IPPROTO_UDP, P4R_UDP_GRO, &on, sizeof on);
    return link;
}

void p4r_datagrams_say(const struct p4r_link *link, enum p4r_udp_type type, const uint8_t *body,
                       size_t length)
{
    uint8_t message[P4R_UDP_HEAD + P4R_UDP_NUMBER + P4R_CONTEXT_BYTES] = {0};
    assert(length <= sizeof message - P4R_UDP_HEAD);
    memcpy(message, link->datagrams->token, sizeof link->datagrams->token);
    message[8] = (uint8_t)type;
    if (length != 0)
        memcpy(message + P4R_UDP_HEAD, body, length);
    (void)!send(link->fd, message, P4R_UDP_HEAD + length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void p4r_datagrams_say_context(const struct p4r_link *link, enum p4r_udp_type type, uint16_t number,
                               const uint8_t *context)
{
    uint8_t body[P4R_UDP_NUMBER + P4R_CONTEXT_BYTES] = {(uint8_t)(number & 0xFF),
                                                        (uint8_t)(number >> 8)};
    if (type == P4R_UDP_CONFIRMED)
        body[P4R_UDP_ABLE_AT] = P4R_UDP_TAKES_SHORTENED;
    if (context != NULL)
        memcpy(body + P4R_UDP_NUMBER, context, P4R_CONTEXT_BYTES);
    p4r_datagrams_say(link, type, body, context != NULL ? sizeof body : P4R_UDP_NUMBER);
}

static void say_bye_and_free(struct p4r_link *link)
{
    struct p4r_datagrams *own = link->datagrams;
    if (own == NULL)
        return;
    if (link->broken == 0 && link->fd >= 0)
        p4r_datagrams_say(link, P4R_UDP_BYE, NULL, 0);
    free(own->arrivals);
    free(own);
}

int p4r_link_keepalive(struct p4r_link *link)
{
    struct p4r_datagrams *own = link->datagrams;
    if (own == NULL || link->broken != 0)
        return 0;
    if (own->unheard > 0)
        p4r_datagrams_say(link, P4R_UDP_PING, NULL, 0);
    return own->unheard++;
}

const struct p4r_datagram_counts *p4r_link_datagram_counts(const struct p4r_link *link)
{
    static const struct p4r_datagram_counts none;
    struct p4r_datagrams *own = link->datagrams;
    if (own == NULL)
        return &none;
    own->counts.path_bytes = own->path.bytes;
    own->counts.path_narrowed = own->path.narrowed;
    own->counts.path_widened = own->path.widened;
    own->counts.path_too_narrow = own->path.too_narrow;
    return &own->counts;
}

size_t p4r_link_control_message(struct p4r_link *link, uint8_t *control_message)
{
    struct p4r_datagrams *own = link->datagrams;
    if (own == NULL || own->control_message_bytes == 0)
        return 0;
    const size_t bytes = own->control_message_bytes;
    memcpy(control_message, own->control_message, sizeof own->control_message);
    own->control_message_bytes = 0;
    return bytes;
}

/* The host has no way to the peer now: an interface is down, a route or an address is missing (EINVAL
 * too), a firewall refuses. */
static int has_no_way(int code)
{
    return code == EHOSTUNREACH || code == ENETUNREACH || code == ENETDOWN || code == EHOSTDOWN ||
           code == EADDRNOTAVAIL || code == EINVAL || code == EPERM || code == EACCES;
}

/* Anybody can forge the message that nobody listens there. So it counts only if it comes several
 * times, and nothing comes from the peer meanwhile: a receive decides that. */
static int note_refusal(struct p4r_link *link)
{
    if (++link->datagrams->refused < P4R_UDP_REFUSALS)
        return 0;
    link->has_more = 1;
    return -EPIPE;
}

int p4r_datagrams_receive_failed(struct p4r_link *link, int code)
{
    if (code == ECONNREFUSED)
        (void)note_refusal(link);
    else if (code == EMSGSIZE)
        p4r_path_suspect(&link->datagrams->path, p4r_now_ns());
    else if (!p4r_is_full(code) && !has_no_way(code))
        return p4r_break(link, code);
    return 0;
}

int p4r_datagrams_send_failed(struct p4r_link *link, int code)
{
    if (code == ECONNREFUSED)
        return note_refusal(link);
    if (has_no_way(code)) {
        p4r_backoff_fail(&link->backoff);
        return 0;
    }
    return p4r_send_failed(link, code);
}

const struct p4r_link_ops p4r_datagrams = {
    .kind = P4R_LINK_DATAGRAM,
    .receive = p4r_datagrams_receive,
    .send = p4r_datagrams_send,
    .events = p4r_events_without_end,
    .free = say_bye_and_free,
};
