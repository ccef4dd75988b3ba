/* SPDX-License-Identifier: Apache-2.0 */
/* Match-action tables, and parser value sets, which are tables without actions.
 *
 * Tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999), as in
 * switch/p4reduce_switch/state/tables.py: entries with the same mask are a group with a hash table of
 * its own, and the groups are tried in the order of their best entry until none can do better. An
 * exact table is one group. A range is no part of the mask: what its hash bucket has is tested. Of
 * several entries that match, the one of the higher priority wins (LPM: the prefix length), then the
 * one that was added first.
 *
 * A key is words of 64 bits, each field starting with a new one, its lowest word first. Python
 * (switch/p4reduce_switch/native/tables.py) is the authority on what is in a table; it checks all
 * before it comes here.
 */
#ifndef P4R_P4_TABLE_H
#define P4R_P4_TABLE_H

#include "base.h"
#include "meter.h"

/* What runs on a hit or a miss. */
struct p4r_choice {
    uint32_t action; /* its index in the table's actions */
    const uint64_t *arguments;
};

/* The choices of an entry: one, or with a selector as many as it can choose from. */
struct p4r_choices {
    uint32_t count;
    uint32_t chooses;
    struct p4r_choice choice[];
};

/* An entry, or what a miss finds: that one is in no group. */
struct p4r_entry {
    struct p4r_entry *next; /* in its bucket, the one of the next lower rank */
    uint64_t hash;
    int64_t priority;
    uint64_t order;
    uint64_t packets, bytes, last_hit_ns;
    struct p4r_meter *meter;
    struct p4r_choices *choices;
    struct p4r_group *group;
    uint64_t words[]; /* the masked key; then low and high of each field that is a range */
};

struct p4r_group {
    int64_t priority; /* of the best entry there has been */
    uint64_t order;
    size_t count;
    size_t room; /* buckets, a power of two */
    struct p4r_entry **buckets;
    uint64_t mask[];
};

/* A field of the key that is a range. */
struct p4r_range {
    uint32_t first; /* word of the key */
    uint32_t words;
};

struct p4r_table {
    uint32_t key_words;
    uint32_t range_count;
    const struct p4r_range *ranges;
    uint32_t group_count, group_room;
    struct p4r_group **groups;
    uint64_t added;
    struct p4r_entry *miss;
    bool fixed; /* has the program's own entries and no others: generated code knows them */
};

P4R_INLINE uint64_t p4r_hash_word(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

bool p4r_in_ranges(const struct p4r_table *table, const struct p4r_entry *entry,
                   const uint64_t *key);

P4R_INLINE bool p4r_better(const struct p4r_entry *entry, int64_t priority, uint64_t order)
{
    return entry->priority > priority || (entry->priority == priority && entry->order < order);
}

/* The entry for a key, or NULL. `words` is the table's `key_words`, as a constant. */
P4R_INLINE struct p4r_entry *p4r_table_find(const struct p4r_table *table, const uint64_t *key,
                                            uint32_t words)
{
    struct p4r_entry *found = NULL;
    for (uint32_t number = 0; number < table->group_count; number++) {
        const struct p4r_group *group = table->groups[number];
        if (found && p4r_better(found, group->priority, group->order))
            break;
        uint64_t hash = 0;
        for (uint32_t i = 0; i < words; i++)
            hash = p4r_hash_word(hash, key[i] & group->mask[i]);
        for (struct p4r_entry *entry = group->buckets[hash & (group->room - 1)]; entry;
             entry = entry->next) {
            if (entry->hash != hash)
                continue;
            uint64_t differs = 0;
            for (uint32_t i = 0; i < words; i++)
                differs |= (key[i] & group->mask[i]) ^ entry->words[i];
            if (differs || (table->range_count && !p4r_in_ranges(table, entry, key)))
                continue;
            if (!found || p4r_better(entry, found->priority, found->order))
                found = entry;
            break;
        }
    }
    return found;
}

P4R_INLINE void p4r_entry_count(struct p4r_entry *entry, uint32_t size)
{
    entry->packets++;
    entry->bytes += size;
}

/* The choice of an entry, or of a miss; `hash` chooses among several. */
P4R_INLINE const struct p4r_choice *p4r_choose(const struct p4r_choices *choices, uint64_t hash)
{
    return &choices->choice[choices->chooses ? (uint32_t)hash % choices->count : 0];
}

/* An empty table. The caller has zeroed it. */
void p4r_table_init(struct p4r_table *table, uint32_t key_words, const struct p4r_range *ranges,
                    uint32_t range_count);
/* Forgets and frees all that it has, also what a miss finds. */
void p4r_table_clear(struct p4r_table *table);

#endif
