/* SPDX-License-Identifier: Apache-2.0 */
/* What Python calls, by ctypes, between two frames. Nothing is checked here: Python has done so. */
#ifndef P4R_P4_CONTROL_H
#define P4R_P4_CONTROL_H

#include "state.h"

/* -- What a program consists of, by number; Python knows which is which ---------------------------- */

enum { P4R_COMMON }; /* the first */

/* Generated. The address of a table, an array's first cell, …; NULL if there is none. */
void *p4r_program_object(struct p4r_program *program, uint32_t number);

/* -- Tables --------------------------------------------------------------------------------------- */

/* `mask` has the key's words; `words` the masked key and then low and high of each range. */
struct p4r_entry *p4r_table_add(struct p4r_table *table, const uint64_t *mask,
                                const uint64_t *words, int64_t priority);
void p4r_table_remove(struct p4r_table *table, struct p4r_entry *entry);
/* What runs on a hit: `count` actions with `lengths[i]` words of arguments each. */
bool p4r_entry_set(struct p4r_entry *entry, uint32_t count, bool chooses, const uint32_t *actions,
                   const uint32_t *lengths, const uint64_t *arguments);
/* What a miss finds, which has no choices at first; NULL: no memory. */
struct p4r_entry *p4r_table_miss(struct p4r_table *table);
/* Whether entries are the program's own and stay as they are. */
void p4r_table_fix(struct p4r_table *table, bool fixed);
/* Of a value set, which is empty: how many of its fields each member has bounds for. */
void p4r_table_use_ranges(struct p4r_table *table, uint32_t count);
struct p4r_entry *p4r_table_lookup(const struct p4r_table *table, const uint64_t *key);

/* -- Copies --------------------------------------------------------------------------------------- */

/* `copies` has ports and instances in turn; count 0 with `exists` false forgets it. */
bool p4r_set_group(struct p4r_common *common, uint32_t group, uint32_t count,
                   const uint32_t *copies, bool exists);
bool p4r_set_session(struct p4r_common *common, uint32_t session, uint32_t count,
                     const uint32_t *copies, uint64_t most, bool exists);

/* -- Everything else ------------------------------------------------------------------------------ */

/* The colour that a meter gives a packet of `size` bytes. */
uint64_t p4r_meter_color(struct p4r_meter *meter, uint32_t size, uint64_t now_ns);
void p4r_seed(struct p4r_common *common, const uint64_t *seed);
void p4r_set_start(struct p4r_common *common, uint64_t start_ns);
/* The words of the events that wait; they are gone with the next call or the next frame. */
const uint64_t *p4r_take_events(struct p4r_common *common, uint32_t *words, uint64_t *lost);

/* The queues of a program that has them, which are empty then; false: no memory. */
bool p4r_set_queues(struct p4r_common *common, uint32_t priorities, uint32_t depth,
                    uint64_t interval_ns);
/* Those of one port, which is below P4R_QUEUE_PORTS. */
void p4r_set_queue(struct p4r_common *common, uint32_t port, uint32_t depth, uint64_t interval_ns);

/* Run a frame and keep its copies, or with queues those that are due: for each, two words of 32 bits
 * (port, length) and the bytes. */
const uint8_t *p4r_run(struct p4r_program *program, uint32_t port, const uint8_t *frame,
                       uint32_t length, uint64_t now_ns, uint64_t *used);
/* The same for what is due; `next_ns` as p4r_program_release returns it. */
const uint8_t *p4r_run_due(struct p4r_program *program, uint64_t now_ns, uint64_t *next_ns,
                           uint64_t *used);

#endif
