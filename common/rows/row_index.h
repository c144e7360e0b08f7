/* Which row an id has: an extendible hash table of buckets of one cache line.
 *
 *   directory  (2^depth)   by the top bits of the hash: partition, then keyed bits
 *   segment    64 KiB      1,024 buckets, by the low bits; a full bucket goes on
 *                          in those behind it
 *   bucket     64 bytes    4 entries: id, slot, version
 *
 * Growth splits one segment: no insertion waits for a copy of the whole table (a doubling
 * one stalls for 445 ms at 10 M ids). Each segment has a limit of its own, so that
 * segments that fill together do not split together. A partition is a range of the
 * directory: it can be scanned by itself. */
#ifndef PS_ROW_INDEX_H
#define PS_ROW_INDEX_H

#include <stddef.h>

#include "row_memory.h"
#include "row_partition.h"

typedef struct ps_row_entry {
    uint64_t id;
    uint32_t slot;    // of the slab + 1, or of the one on the disk, with PS_ROW_COLD;
                      // PS_ROW_CANDIDATE | steps with a gradient; 0: empty
    uint32_t version; // after the last gradient
} ps_row_entry;

#define PS_ROW_CANDIDATE 0x80000000u
#define PS_ROW_COLD      0x40000000u

enum { PS_ROW_BUCKET_ENTRIES = 4, PS_ROW_SEGMENT_BUCKETS = 1024 };

typedef struct ps_row_bucket {
    ps_row_entry entries[PS_ROW_BUCKET_ENTRIES];
} ps_row_bucket;

typedef struct ps_row_segment {
    ps_row_bucket *buckets;
    uint32_t depth; // top bits of the hash that its ids share
    uint32_t n, limit;
} ps_row_segment;

typedef struct ps_row_index {
    ps_row_key key;
    uint64_t salt;
    ps_row_memory *memory;     // borrowed
    ps_row_bucket **directory; // the segments' buckets, without a step in between
    uint32_t *segment_of;      // (2^depth) in segments
    ps_row_segment *segments;
    uint32_t n_segments, segments_room, depth;
    uint32_t counts[PS_ROW_PARTITIONS]; // entries of each partition
} ps_row_index;

/* salt: ps_row_hash_salt of the table. NOMEM. */
ps_err ps_row_index_init(ps_row_index *index, uint64_t salt, ps_row_key key,
                         ps_row_memory *memory);
void ps_row_index_fini(ps_row_index *index); // safe on a zeroed one

static inline uint64_t ps_row_index_hash(const ps_row_index *index, uint64_t id)
{
    const uint64_t place = ps_row_hash(index->salt, id);
    const uint64_t partition = UINT64_MAX << (64 - PS_ROW_PARTITION_BITS);
    return (place & partition) |
           (ps_row_keyed(index->key, place) >> PS_ROW_PARTITION_BITS);
}

/* The first bucket in which an id of this hash may be: to fetch it ahead. */
static inline ps_row_bucket *ps_row_index_bucket(const ps_row_index *index, uint64_t hash)
{
    return index->directory[(hash >> 1) >> (63 - index->depth)] +
           (hash & (PS_ROW_SEGMENT_BUCKETS - 1));
}

/* The first entry of a bucket with that id, which may be an empty one (slot 0) if the id
 * is 0; NULL: none. All are compared: a branch for each would often be mispredicted. */
static inline ps_row_entry *ps_row_bucket_find(ps_row_bucket *bucket, uint64_t id)
{
    ps_row_entry *e = bucket->entries;
    const unsigned same = (unsigned)(e[0].id == id) | (unsigned)(e[1].id == id) << 1 |
                          (unsigned)(e[2].id == id) << 2 | (unsigned)(e[3].id == id) << 3;
    return same ? e + __builtin_ctz(same) : NULL;
}

/* Looks on, behind a first bucket that is full. */
ps_row_entry *ps_row_index_find_past(const ps_row_index *index, uint64_t hash,
                                     uint64_t id);

/* The id's entry, or NULL. It moves with the next insertion or removal. */
static inline ps_row_entry *ps_row_index_find(const ps_row_index *index, uint64_t hash,
                                              uint64_t id)
{
    ps_row_bucket *bucket = ps_row_index_bucket(index, hash);
    ps_row_entry *e = ps_row_bucket_find(bucket, id);
    if (e) return e->slot ? e : NULL;
    if (bucket->entries[PS_ROW_BUCKET_ENTRIES - 1].slot == 0) return NULL;
    return ps_row_index_find_past(index, hash, id);
}

/* Adds an entry for an id that has none; slot 0, to be set by the caller at once. NOMEM.
 */
ps_err ps_row_index_insert(ps_row_index *index, uint64_t hash, uint64_t id,
                           ps_row_entry **entry);

/* Removes an entry that find or a cursor gave. */
void ps_row_index_remove(ps_row_index *index, ps_row_entry *entry);

/* The first partition after this one that does not share its segments with it. To go
 * through a table, take all that share some at once: else a small table, which is one
 * segment, would be gone through a thousand times. */
static inline uint32_t ps_row_index_group_end(const ps_row_index *index,
                                              uint32_t partition)
{
    const uint32_t bits =
        index->depth < PS_ROW_PARTITION_BITS ? PS_ROW_PARTITION_BITS - index->depth : 0;
    return ((partition >> bits) + 1) << bits;
}

/* Goes through the entries of partitions first .. end - 1. After ps_row_index_remove of
 * the entry that it gave last, ps_row_cursor_back must be called. No insertions
 * meanwhile. */
typedef struct ps_row_cursor {
    uint64_t at, at_end; // in the directory
    uint32_t entry;      // in the segment
    uint32_t first, end;
} ps_row_cursor;

ps_row_cursor ps_row_cursor_at(const ps_row_index *index, uint32_t first, uint32_t end);
ps_row_entry *ps_row_cursor_next(const ps_row_index *index, ps_row_cursor *cursor);
static inline void ps_row_cursor_back(ps_row_cursor *cursor)
{
    cursor->entry--;
}

#endif
