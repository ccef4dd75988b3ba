/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of tables: in place, so that one costs the same however full the table is. */
#include "table.h"

#include "control.h"

enum { FIRST_ROOM = 16 };

bool p4r_in_ranges(const struct p4r_table *table, const struct p4r_entry *entry,
                   const uint64_t *key)
{
    const uint64_t *bounds = entry->words + table->key_words;
    for (uint32_t number = 0; number < table->range_count; number++) {
        const uint32_t words = table->ranges[number].words;
        const uint64_t *value = key + table->ranges[number].first;
        const uint64_t *low = bounds, *high = bounds + words;
        bounds += 2 * (size_t)words;
        for (uint32_t i = words; i-- > 0;) {
            if (value[i] != low[i]) {
                if (value[i] < low[i])
                    return false;
                break;
            }
        }
        for (uint32_t i = words; i-- > 0;) {
            if (value[i] != high[i]) {
                if (value[i] > high[i])
                    return false;
                break;
            }
        }
    }
    return true;
}

void p4r_table_init(struct p4r_table *table, uint32_t key_words, const struct p4r_range *ranges,
                    uint32_t range_count)
{
    table->key_words = key_words;
    table->ranges = ranges;
    table->range_count = range_count;
}

static void free_entry(struct p4r_entry *entry)
{
    free(entry->choices);
    free(entry);
}

static void free_group(struct p4r_group *group)
{
    free(group->buckets);
    free(group);
}

void p4r_table_clear(struct p4r_table *table)
{
    for (uint32_t number = 0; number < table->group_count; number++) {
        struct p4r_group *group = table->groups[number];
        for (size_t bucket = 0; bucket < group->room; bucket++) {
            struct p4r_entry *entry = group->buckets[bucket];
            while (entry) {
                struct p4r_entry *next = entry->next;
                free_entry(entry);
                entry = next;
            }
        }
        free_group(group);
    }
    free(table->groups);
    if (table->miss)
        free_entry(table->miss);
    table->groups = NULL;
    table->miss = NULL;
    table->group_count = table->group_room = 0;
}

/* -- Groups --------------------------------------------------------------------------------- */

static struct p4r_group *find_group(const struct p4r_table *table, const uint64_t *mask)
{
    const size_t size = table->key_words * sizeof *mask;
    for (uint32_t number = 0; number < table->group_count; number++)
        if (!memcmp(table->groups[number]->mask, mask, size))
            return table->groups[number];
    return NULL;
}

static struct p4r_group *add_group(struct p4r_table *table, const uint64_t *mask)
{
    if (table->group_count == table->group_room) {
        const uint32_t room = table->group_room ? 2 * table->group_room : 4;
        struct p4r_group **groups = realloc(table->groups, room * sizeof *groups);
        if (!groups)
            return NULL;
        table->groups = groups;
        table->group_room = room;
    }
    const size_t size = table->key_words * sizeof *mask;
    struct p4r_group *group = calloc(1, sizeof *group + size);
    if (!group)
        return NULL;
    group->buckets = calloc(FIRST_ROOM, sizeof *group->buckets);
    if (!group->buckets) {
        free(group);
        return NULL;
    }
    group->room = FIRST_ROOM;
    group->priority = INT64_MIN;
    group->order = UINT64_MAX;
    memcpy(group->mask, mask, size);
    table->groups[table->group_count++] = group;
    return group;
}

static uint32_t position_of(const struct p4r_table *table, const struct p4r_group *group)
{
    uint32_t number = 0;
    while (table->groups[number] != group)
        number++;
    return number;
}

/* The group's best entry may be better than before: move it forward. */
static void promote(struct p4r_table *table, struct p4r_group *group)
{
    for (uint32_t at = position_of(table, group); at > 0; at--) {
        struct p4r_group *before = table->groups[at - 1];
        if (before->priority > group->priority ||
            (before->priority == group->priority && before->order < group->order))
            break;
        table->groups[at - 1] = group;
        table->groups[at] = before;
    }
}

static void remove_group(struct p4r_table *table, struct p4r_group *group)
{
    const uint32_t at = position_of(table, group);
    table->group_count--;
    memmove(table->groups + at, table->groups + at + 1,
            (table->group_count - at) * sizeof *table->groups);
    free_group(group);
}

/* Twice as many buckets; without memory for them it stays as it is, only slower. A bucket's
 * entries keep their order, so each half of one is in the order of rank as well. */
static void grow(struct p4r_group *group)
{
    const size_t room = 2 * group->room;
    struct p4r_entry **buckets = calloc(room, sizeof(struct p4r_entry *));
    if (!buckets)
        return;
    for (size_t bucket = 0; bucket < group->room; bucket++) {
        struct p4r_entry **low = &buckets[bucket], **high = &buckets[bucket + group->room];
        for (struct p4r_entry *entry = group->buckets[bucket]; entry; entry = entry->next) {
            struct p4r_entry ***end = entry->hash & group->room ? &high : &low;
            **end = entry;
            *end = &entry->next;
        }
        *low = *high = NULL;
    }
    free(group->buckets);
    group->buckets = buckets;
    group->room = room;
}

/* -- What Python calls ------------------------------------------------------------------------ */

struct p4r_entry *p4r_table_add(struct p4r_table *table, const uint64_t *mask,
                                const uint64_t *words, int64_t priority)
{
    size_t count = table->key_words;
    for (uint32_t number = 0; number < table->range_count; number++)
        count += 2 * (size_t)table->ranges[number].words;
    struct p4r_entry *entry = calloc(1, sizeof *entry + count * sizeof *words);
    if (!entry)
        return NULL;
    struct p4r_group *group = find_group(table, mask);
    if (!group)
        group = add_group(table, mask);
    if (!group) {
        free(entry);
        return NULL;
    }
    memcpy(entry->words, words, count * sizeof *words);
    entry->priority = priority;
    entry->order = ++table->added;
    entry->group = group;
    for (uint32_t i = 0; i < table->key_words; i++)
        entry->hash = p4r_hash_word(entry->hash, words[i]);
    if (group->count >= group->room)
        grow(group);
    struct p4r_entry **place = &group->buckets[entry->hash & (group->room - 1)];
    while (*place && !p4r_better(entry, (*place)->priority, (*place)->order))
        place = &(*place)->next;
    entry->next = *place;
    *place = entry;
    group->count++;
    if (p4r_better(entry, group->priority, group->order)) {
        group->priority = entry->priority;
        group->order = entry->order;
        promote(table, group);
    }
    return entry;
}

void p4r_table_remove(struct p4r_table *table, struct p4r_entry *entry)
{
    struct p4r_group *group = entry->group;
    struct p4r_entry **place = &group->buckets[entry->hash & (group->room - 1)];
    while (*place != entry)
        place = &(*place)->next;
    *place = entry->next;
    free_entry(entry);
    if (--group->count == 0)
        remove_group(table, group);
}

/* Slots and their arguments in one piece of memory. */
static struct p4r_choices *make_choices(uint32_t count, bool chooses, const uint32_t *actions,
                                        const uint32_t *lengths, const uint64_t *arguments)
{
    size_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += lengths[i];
    const size_t head = sizeof(struct p4r_choices) + count * sizeof(struct p4r_choice);
    struct p4r_choices *choices = malloc(head + total * sizeof *arguments);
    if (!choices)
        return NULL;
    choices->count = count;
    choices->chooses = chooses;
    uint64_t *own = (uint64_t *)(void *)((char *)choices + head);
    if (total)
        memcpy(own, arguments, total * sizeof *own);
    for (uint32_t i = 0; i < count; i++) {
        choices->choice[i].action = actions[i];
        choices->choice[i].arguments = own;
        own += lengths[i];
    }
    return choices;
}

bool p4r_entry_set(struct p4r_entry *entry, uint32_t count, bool chooses, const uint32_t *actions,
                   const uint32_t *lengths, const uint64_t *arguments)
{
    struct p4r_choices *choices = make_choices(count, chooses, actions, lengths, arguments);
    if (!choices)
        return false;
    free(entry->choices);
    entry->choices = choices;
    return true;
}

struct p4r_entry *p4r_table_miss(struct p4r_table *table)
{
    if (!table->miss)
        table->miss = calloc(1, sizeof *table->miss);
    return table->miss;
}

void p4r_table_fix(struct p4r_table *table, bool fixed) { table->fixed = fixed; }

void p4r_table_use_ranges(struct p4r_table *table, uint32_t count) { table->range_count = count; }

struct p4r_entry *p4r_table_lookup(const struct p4r_table *table, const uint64_t *key)
{
    return p4r_table_find(table, key, table->key_words);
}
