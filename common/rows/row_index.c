#include "row_index.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* A segment's limit is 3,072 to 3,583 of its 4,096 entries. */
enum {
    SEGMENT_BYTES = PS_ROW_SEGMENT_BUCKETS * (int)sizeof(ps_row_bucket),
    LIMIT_LEAST = 3072,
    LIMIT_SPREAD = 511,
    DEPTH_MOST = 30,
};

/* prefix: the top bits of the hash that the segment's ids share. */
static ps_err index_segment_add(ps_row_index *index, uint64_t prefix, uint32_t depth)
{
    PS_TRY(ps_mem_room(&index->segments, index->n_segments, &index->segments_room,
                       sizeof *index->segments, "index of rows"));
    ps_row_segment *s = &index->segments[index->n_segments];
    const uint64_t spread = ps_row_keyed(index->key, prefix ^ depth) & LIMIT_SPREAD;
    *s = (ps_row_segment){.depth = depth, .limit = LIMIT_LEAST + (uint32_t)spread};
    PS_TRY(
        ps_row_memory_take(index->memory, SEGMENT_BYTES, "index of rows", &s->buckets));
    index->n_segments++;
    return PS_OK;
}

ps_err ps_row_index_init(ps_row_index *index, uint64_t salt, ps_row_key key,
                         ps_row_memory *memory)
{
    *index = (ps_row_index){.key = key, .salt = salt, .memory = memory};
    PS_TRY(ps_mem_zalloc(&index->directory, 1, sizeof(void *), "index of rows"));
    PS_TRY(ps_mem_zalloc(&index->segment_of, 1, sizeof(uint32_t), "index of rows"));
    PS_TRY(index_segment_add(index, 0, 0));
    index->directory[0] = index->segments[0].buckets;
    return PS_OK;
}

void ps_row_index_fini(ps_row_index *index)
{
    free(index->directory);
    free(index->segment_of);
    free(index->segments);
    *index = (ps_row_index){0};
}

static ps_row_segment *index_segment(const ps_row_index *index, uint64_t hash)
{
    return &index->segments[index->segment_of[(hash >> 1) >> (63 - index->depth)]];
}

/* The bucket after one, and after the last one the first. */
static uint32_t index_next(uint32_t bucket)
{
    return (bucket + 1) & (PS_ROW_SEGMENT_BUCKETS - 1);
}

ps_row_entry *ps_row_index_find_past(const ps_row_index *index, uint64_t hash,
                                     uint64_t id)
{
    ps_row_bucket *buckets = index->directory[(hash >> 1) >> (63 - index->depth)];
    uint32_t at = hash & (PS_ROW_SEGMENT_BUCKETS - 1);
    for (;;) {
        at = index_next(at);
        ps_row_entry *e = ps_row_bucket_find(&buckets[at], id);
        if (e) return e->slot ? e : NULL;
        if (buckets[at].entries[PS_ROW_BUCKET_ENTRIES - 1].slot == 0)
            return NULL; // no segment is ever full
    }
}

/* The first free entry from the hash's bucket on. */
static ps_row_entry *index_place(ps_row_bucket *buckets, uint64_t hash)
{
    for (uint32_t at = hash & (PS_ROW_SEGMENT_BUCKETS - 1);; at = index_next(at))
        for (int i = 0; i < PS_ROW_BUCKET_ENTRIES; i++)
            if (buckets[at].entries[i].slot == 0) return &buckets[at].entries[i];
}

static ps_err index_double(ps_row_index *index)
{
    const uint64_t n = (uint64_t)1 << index->depth;
    ps_row_bucket **directory;
    uint32_t *segment_of = NULL;
    if (index->depth == DEPTH_MOST)
        return ps_err_set(PS_ERR_NOMEM, "index of rows: %u segments do not suffice",
                          index->n_segments);
    PS_TRY(PS_NEW(&directory, 2 * n, "index of rows"));
    const ps_err err = PS_NEW(&segment_of, 2 * n, "index of rows");
    if (err != PS_OK) {
        free(directory);
        return err;
    }
    for (uint64_t i = 0; i < 2 * n; i++) {
        directory[i] = index->directory[i / 2];
        segment_of[i] = index->segment_of[i / 2];
    }
    free(index->directory);
    free(index->segment_of);
    index->directory = directory;
    index->segment_of = segment_of;
    index->depth++;
    return PS_OK;
}

/* Splits the segment of a hash by the first bit that its ids do not share. */
static ps_err index_split(ps_row_index *index, uint64_t hash)
{
    ps_row_bucket old[PS_ROW_SEGMENT_BUCKETS];
    const uint32_t depth = index_segment(index, hash)->depth;
    if (depth == index->depth) PS_TRY(index_double(index));
    const uint64_t prefix = depth > 0 ? hash >> (64 - depth) : 0;
    const uint32_t shift = index->depth - depth - 1;
    const uint32_t low = index->segment_of[(hash >> 1) >> (63 - index->depth)];
    const uint32_t high = index->n_segments;
    PS_TRY(index_segment_add(index, 2 * prefix + 1, depth + 1));
    ps_row_segment *pair[] = {&index->segments[low], &index->segments[high]};
    memcpy(old, pair[0]->buckets, sizeof old);
    memset(pair[0]->buckets, 0, sizeof old);
    pair[0]->n = 0;
    pair[0]->depth++;
    for (int b = 0; b < PS_ROW_SEGMENT_BUCKETS; b++) {
        for (int i = 0; i < PS_ROW_BUCKET_ENTRIES && old[b].entries[i].slot; i++) {
            const uint64_t h = ps_row_index_hash(index, old[b].entries[i].id);
            ps_row_segment *to = pair[h >> (63 - depth) & 1];
            *index_place(to->buckets, h) = old[b].entries[i];
            to->n++;
        }
    }
    const uint64_t begin = (2 * prefix + 1) << shift;
    for (uint64_t i = begin; i < begin + ((uint64_t)1 << shift); i++) {
        index->directory[i] = pair[1]->buckets;
        index->segment_of[i] = high;
    }
    return PS_OK;
}

ps_err ps_row_index_insert(ps_row_index *index, uint64_t hash, uint64_t id,
                           ps_row_entry **entry)
{
    while (index_segment(index, hash)->n >= index_segment(index, hash)->limit)
        PS_TRY(index_split(index, hash));
    ps_row_segment *s = index_segment(index, hash);
    *entry = index_place(s->buckets, hash);
    **entry = (ps_row_entry){.id = id};
    s->n++;
    index->counts[ps_row_partition(hash)]++;
    return PS_OK;
}

/* Takes an entry out of its bucket, whose others stay at its begin. Whether the bucket
 * was full: then ids may have gone past it. */
static bool bucket_take(ps_row_bucket *bucket, ps_row_entry *entry)
{
    int last = PS_ROW_BUCKET_ENTRIES - 1;
    const bool full = bucket->entries[last].slot != 0;
    while (bucket->entries[last].slot == 0)
        last--;
    *entry = bucket->entries[last];
    bucket->entries[last] = (ps_row_entry){0};
    return full;
}

/* An entry of bucket `at` that would have stood in bucket `hole`, had there been room. */
static ps_row_entry *index_passed(const ps_row_index *index, ps_row_bucket *buckets,
                                  uint32_t at, uint32_t hole)
{
    const uint32_t mask = PS_ROW_SEGMENT_BUCKETS - 1;
    for (int i = 0; i < PS_ROW_BUCKET_ENTRIES && buckets[at].entries[i].slot; i++) {
        ps_row_entry *e = &buckets[at].entries[i];
        const uint32_t home = ps_row_index_hash(index, e->id) & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) return e;
    }
    return NULL;
}

void ps_row_index_remove(ps_row_index *index, ps_row_entry *entry)
{
    const uint64_t hash = ps_row_index_hash(index, entry->id);
    ps_row_segment *s = index_segment(index, hash);
    uint32_t hole = (uint32_t)((ps_row_bucket *)(void *)entry - s->buckets);
    s->n--;
    index->counts[ps_row_partition(hash)]--;
    while (bucket_take(&s->buckets[hole], entry)) {
        uint32_t at = hole;
        ps_row_entry *passed = NULL;
        do {
            at = index_next(at);
            passed = index_passed(index, s->buckets, at, hole);
        } while (!passed && s->buckets[at].entries[PS_ROW_BUCKET_ENTRIES - 1].slot != 0);
        if (!passed) return;
        s->buckets[hole].entries[PS_ROW_BUCKET_ENTRIES - 1] = *passed;
        hole = at;
        entry = passed;
    }
}

/* The directory's entry for the begin of a partition. */
static uint64_t cursor_place(const ps_row_index *index, uint32_t partition)
{
    return index->depth >= PS_ROW_PARTITION_BITS
               ? (uint64_t)partition << (index->depth - PS_ROW_PARTITION_BITS)
               : partition >> (PS_ROW_PARTITION_BITS - index->depth);
}

ps_row_cursor ps_row_cursor_at(const ps_row_index *index, uint32_t first, uint32_t end)
{
    ps_row_cursor c = {.at = cursor_place(index, first), .first = first, .end = end};
    if (end > first) c.at_end = cursor_place(index, end - 1) + 1;
    if (index->depth > PS_ROW_PARTITION_BITS) c.at_end = cursor_place(index, end);
    return c;
}

static bool cursor_wants(const ps_row_index *index, const ps_row_cursor *c, uint64_t id)
{
    const uint32_t partition = ps_row_partition(ps_row_hash(index->salt, id));
    return partition >= c->first && partition < c->end;
}

ps_row_entry *ps_row_cursor_next(const ps_row_index *index, ps_row_cursor *c)
{
    enum { ENTRIES = PS_ROW_SEGMENT_BUCKETS * PS_ROW_BUCKET_ENTRIES };
    while (c->at < c->at_end) {
        const ps_row_segment *s = &index->segments[index->segment_of[c->at]];
        while (c->entry < ENTRIES) {
            const uint32_t at = c->entry++;
            ps_row_entry *e = &s->buckets[at / PS_ROW_BUCKET_ENTRIES]
                                   .entries[at % PS_ROW_BUCKET_ENTRIES];
            if (e->slot != 0 &&
                (s->depth >= PS_ROW_PARTITION_BITS || cursor_wants(index, c, e->id)))
                return e;
        }
        // to where the next segment begins, also from the middle of this one
        c->entry = 0;
        const uint64_t span = (uint64_t)1 << (index->depth - s->depth);
        c->at = (c->at / span + 1) * span;
    }
    return NULL;
}
