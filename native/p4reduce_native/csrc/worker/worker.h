/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's part of the protocol in C: contract with worker/p4reduce/machine_code.py.
 *
 * Nothing here allocates memory or keeps any: all state lies in arrays that Python owns, so that
 * Python sees the same whoever has changed it last. What is said in Python (quantise.py,
 * stochastic.py, noise.py, blocks.py, slots.py, timers.py, window.py) is what is done here, bit for
 * bit; tests/native compares the two. */
#ifndef P4R_WORKER_H
#define P4R_WORKER_H

#include <stdint.h>

/* Where a field of a structure that Python sees is, and how large; or a whole structure. (layout.c) */
struct p4r_layout {
    const char *name; /* "p4r_slots.expected"; NULL: there are no more */
    uint32_t offset, size;
};

/* All of them, for Python to compare with its own when it loads the library. */
const struct p4r_layout *p4r_worker_layouts(void);

/* A row of a FrameBuffer: a frame begins two bytes into it, so that what follows Ethernet is
 * aligned. */
#define P4R_BUFFER_STRIDE 2048
#define P4R_BUFFER_PAD 2
#define P4R_AGG_OFFSET 42 /* in a frame: the aggregation header, nine words */
#define P4R_AGG_WORDS 9
#define P4R_PAYLOAD_OFFSET 78
#define P4R_PAYLOAD_BYTES 1024
#define P4R_MOST_LANES 1024 /* in a block */

/* -- Numbers and lanes (lanes.c) -------------------------------------------------------------- */

enum p4r_numbers { P4R_INTEGERS, P4R_FLOAT16, P4R_FLOAT32, P4R_FLOAT64 };

/* How the numbers of a collective become lanes, and sums of lanes numbers. */
struct p4r_codec {
    uint32_t numbers;    /* enum p4r_numbers; integers are lanes as they are */
    uint32_t lane_bytes; /* 4: rounded to nearest; 2 or 1: rounded at random */
    uint32_t inexact;    /* a factor below is no power of two (lanes of 4 bytes only) */
    uint32_t unused;
    uint64_t key;           /* of the noise, for rounding at random */
    double limit;           /* the largest magnitude of one rank's lane */
    double divisor;         /* of sums, for lanes of 2 bytes or 1 */
    const double *scales;   /* 256, by a block's exponent: numbers to lanes */
    const float *scales32;  /* the same as float32 */
    const double *factors;  /* 256: lanes to numbers */
    const float *factors32; /* the same as float32 */
};

/* Fill a payload with a block's lanes: `numbers` are as many as a payload has lanes. */
void p4r_lanes_encode(const struct p4r_codec *codec, const uint8_t *numbers, uint8_t exponent,
                      int64_t block, uint8_t *payload);

/* Turn `count` lanes into numbers. */
void p4r_lanes_decode(const struct p4r_codec *codec, const uint8_t *lanes, uint32_t count,
                      uint8_t exponent, uint8_t *numbers);

/* Find the exponents of blocks, and whether they are not all zeros; `width` numbers each, of
 * `number_bytes`. Returns the first block with a float64 that is no float32, or -1. */
int64_t p4r_measure(uint32_t numbers, uint32_t number_bytes, const uint8_t *base, uint64_t blocks,
                    uint64_t width, uint8_t *exponents, uint8_t *nonzero);

/* For each of `blocks` blocks find the first one from it on in its stripe that is not all zeros, or
 * `blocks`. Block b is in stripe b modulo `stripes`; `next` has an entry for each block of whole
 * rounds of all stripes, and one round more. */
void p4r_look_ahead(const uint8_t *nonzero, uint64_t blocks, uint64_t stripes, int64_t *next);

/* -- Tensors (blocks.c) ----------------------------------------------------------------------- */

/* A stretch of memory cut into blocks, of which the last may be shorter. */
struct p4r_piece {
    int64_t first;      /* number of its first block */
    int64_t full;       /* whole blocks */
    int64_t tail_bytes; /* of the one after these; 0: there is none */
    uint8_t *base;      /* NULL: all zeros, and what is written is dropped */
};

struct p4r_blocks {
    const struct p4r_piece *pieces; /* in order */
    const int64_t *places;          /* of each block among those that are there; NULL: all are */
    uint64_t count;                 /* of pieces */
};

enum p4r_part { P4R_FIRST = 1, P4R_SECOND = 2, P4R_WHOLE = 3 };

/* Quantise a block into a payload. `number` is what the noise goes by. */
void p4r_block_encode(const struct p4r_codec *codec, const struct p4r_blocks *source, int64_t block,
                      int64_t number, uint8_t exponent, uint8_t *payload);

/* Write sums, or a half of them, into a block. */
void p4r_block_decode(const struct p4r_codec *codec, const struct p4r_blocks *target, int64_t block,
                      uint8_t exponent, const uint8_t *lanes, uint32_t part);

#define P4R_TOLD_MOST 16

struct p4r_told {
    double at;
    uint64_t heard;
};

/* When what happened to a collective that is traced, in seconds as in Python; 0: not yet. */
struct p4r_course {
    double all_there;   /* the first of its stripes was open, which takes all ranks */
    double last_answer; /* the latest round was complete */
    double last_made;   /* the latest frame with lanes of this rank was made */
    uint32_t told_count, unused;
    struct p4r_told told[P4R_TOLD_MOST]; /* whom the switch said to have heard, where that was news */
};

/* A collective. */
struct p4r_stream {
    struct p4r_codec codec;
    struct p4r_blocks source, target;
    const int64_t *next_nonzero; /* from a block on in its stripe, this rank's; or `count` */
    const uint8_t *exponents;    /* of each block, and of `count` */
    int64_t count;               /* blocks */
    int64_t stripes;
    int64_t sequence;
    int64_t offset; /* slot of the first stripe */
    int64_t slots;  /* for collectives of its class */
    int64_t before; /* taken from its order */
    int64_t *left;  /* stripes that are not over */
    uint32_t tag, format;
    struct p4r_course *course; /* NULL: it is not traced */
};

/* A round of it is complete, one that opens a stripe or another one. (course.c) */
void p4r_course_answered(struct p4r_course *course, int opening, double now);

/* The switch has said whom it has heard, as bits. */
void p4r_course_told(struct p4r_course *course, uint64_t heard, double now);

/* Both for many blocks: rows of a FrameBuffer, whose first row is at `rows`. `blocks` says where
 * they are, `numbers` what they are called. */
void p4r_encode(const struct p4r_codec *codec, const struct p4r_blocks *source,
                const int64_t *blocks, const int64_t *numbers, const uint8_t *exponents,
                uint8_t *rows, const int64_t *which, uint64_t count);
void p4r_decode(const struct p4r_codec *codec, const struct p4r_blocks *target,
                const int64_t *blocks, const uint8_t *exponents, const uint8_t *rows,
                const int64_t *which, uint64_t count, uint32_t part);

/* -- Slots (receive.c, rounds.c) --------------------------------------------------------------- */

#define P4R_SHAPES 3       /* rows of a slot in the frames to send: */
#define P4R_EMPTY 0        /* without lanes, */
#define P4R_FILLED 1       /* with, */
#define P4R_PADDED 2       /* with room for those of the result */
#define P4R_IDLE (-1)      /* in `expected` */
#define P4R_OPENING (-1)   /* in `block` */
#define P4R_LAST INT64_MAX /* in `order`: nothing to send */
#define P4R_COMPARED 6     /* words of 8 bytes, from the sixth byte of a frame on */
#define P4R_ROUND_TRIPS 4096

/* timers.RetransmissionTimeout */
struct p4r_timeout {
    double seconds, floor, least_ceiling, ceiling;
    double smoothed, variation, longest, window_ends;
};

/* What was counted since Python has looked last; statistics.Counts. */
struct p4r_counts {
    int64_t frames_sent, bytes_sent, frames_received, bytes_received, spurious, stale, statuses,
        padded, blocks_announced, blocks_sent, empty_sent, blocks_received;
    int64_t collectives, blocks; /* of collectives that callers have run themselves */
};

/* slots.SlotMachine with its timers, gate and window. Arrays have an entry for each slot unless
 * something else is said. */
struct p4r_slots {
    /* What never changes. */
    uint32_t slots, job, levels, turn; /* `levels`: more than one in a tree; `turn`: timers.py */
    uint32_t contribution, result;     /* first words of headers, without flags */
    uint32_t tries_a_doubling, unused; /* timers.py */
    double stretch;                    /* the same */
    uint64_t everybody, own_bit;       /* on the own switch, as bits */
    uint64_t wanted[P4R_COMPARED], mask[P4R_COMPARED]; /* answers.own_answers */

    /* What runs, and the round under way. */
    const struct p4r_stream **streams; /* NULL: not for C */
    int64_t *expected, *block, *announced, *row;
    uint32_t *next_round;
    uint32_t *awaited; /* nine words each */
    uint8_t *exponent, *parts;
    int64_t *owner, *count; /* of the stream: its sequence number and its blocks */
    uint32_t *tag, *format;
    uint8_t *behind;   /* whether another stream waits for the slot */
    uint64_t *heard;   /* from the last STATUS; 0: there was none */
    uint8_t *level;    /* which switch that is from, 0: the own one */
    uint8_t *outgoing; /* first row of the frames to send, P4R_SHAPES each */

    /* Timers, gate, window. */
    int64_t *tries, *order;
    double *sent_at, *due;
    uint8_t *opening, *waiting;
    double *round_trips; /* P4R_ROUND_TRIPS */
    struct p4r_timeout timeout, opening_timeout;
    double latest, silence, heard_switch_at;
    int64_t window, growth, settling, results, troubled, floor; /* `window` is its size */
    int64_t round_trip_count;
    uint64_t left; /* ranks that have left, as bits of the own switch */
    uint32_t backed_off, some_open, holds_back, some_halves;

    /* What comes out of a call. */
    struct p4r_counts counts;
    int64_t *queued;     /* rows to send, of `outgoing`; room for one a slot */
    int64_t *ended;      /* slots whose stripe is over, and that another stream waits for */
    uint8_t *ended_late; /* of each of these, whether a timer of this rank's had a part in that */
    uint32_t odd_count,  /* frames for Python */
        queued_count, ended_count, most, /* frames in a batch */
        finished,                        /* streams that are over */
        left_elsewhere;                  /* whether ranks of other switches have left */

    /* Scratch. */
    uint8_t *verdicts;  /* `most` */
    uint8_t *seen;      /* a slot; 0 between two calls */
    int64_t *completed; /* slots whose round is complete, at most one entry each */
    uint8_t *how;       /* of each of these: P4R_LATE, ... */
    uint32_t *next;     /* of each of these: next block and exponent, two words */
    int64_t *sorted;    /* slots, or their order */
    double *samples;    /* P4R_ROUND_TRIPS */
};

/* Take a batch of frames, at most `most`: the first rows of a FrameBuffer. What is regular is done.
 * Frames that are not, together with all others of the same slot, are moved to the first rows, in
 * order, for Python to take. `now`: seconds, as in Python. */
void p4r_receive(struct p4r_slots *slots, uint8_t *rows, int64_t *lengths, uint32_t count,
                 double now);

/* The same of frames that lie elsewhere, maybe in memory that is written to meanwhile; their headers
 * are in the rows. All but odd ones are read where they are. */
void p4r_receive_from(struct p4r_slots *slots, uint8_t *rows, int64_t *lengths,
                      const uint8_t *const *frames, uint32_t count, double now);

/* Make the frame of a slot's next round, about `block` with the exponent agreed. */
void p4r_contribute(struct p4r_slots *slots, uint32_t slot, int64_t block, uint8_t exponent);

/* Make room for the lanes of a result in a slot's contribution, and send it once more:
 * slots.SlotMachine._repeat_with_room. Returns whether it had none. */
int p4r_repeat_with_room(struct p4r_slots *slots, uint32_t slot);

/* Start the stripes of a stream in some slots, which are free, and make the frames that open them:
 * the first row of each. It is for Python to count them. */
void p4r_open(struct p4r_slots *slots, const struct p4r_stream *stream, const int64_t *which,
              uint64_t count);

/* The stripe in a slot is over, and nothing waits for the slot. */
void p4r_end_stripe(struct p4r_slots *slots, uint32_t slot);

/* -- Timers and window (timers.c, window.c) ------------------------------------------------------ */

enum { P4R_LATE = 1, P4R_TRIED = 2, P4R_TOLD = 4 }; /* `how` */

/* Rounds of `completed` slots are over: timers.SlotTimers.completed. Returns how many there were,
 * besides opening ones, and sets how many of them were troubled. */
int64_t p4r_timers_completed(struct p4r_slots *slots, uint32_t count, double now,
                             int64_t *troubled);

/* Nothing has come for so long that it is not single frames that are lost. */
int p4r_quiet(const struct p4r_slots *slots, double now);

/* Somebody of the own switch has asked who was heard: timers.SlotTimers.told and .missed. */
void p4r_told(struct p4r_slots *slots, uint32_t slot, int heard, int quiet, double now);
void p4r_missed(struct p4r_slots *slots, uint32_t slot, double now);

/* Start the timers of rows that were sent: slots.SlotMachine.sent. */
void p4r_sent(struct p4r_slots *slots, const int64_t *rows, uint64_t count, double now);

/* window.Window.completed and .heard */
void p4r_window_completed(struct p4r_slots *slots, int64_t results, int64_t troubled);
void p4r_window_heard(struct p4r_slots *slots, double now);

/* Which rows may be sent of `count` rows and what was held back before: window.Gate.let_out, as
 * slots.SlotMachine.take_sendable uses it. `out` has room for one a slot, or `count` if that is
 * more. Returns how many. */
uint32_t p4r_let_out(struct p4r_slots *slots, const int64_t *rows, uint32_t count, int64_t *out);

#endif
