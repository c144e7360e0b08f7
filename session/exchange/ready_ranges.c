#include "ready_ranges.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

enum { SPARE_RANGES = 16 };

ps_err ps_ready_ranges_init(ps_ready_ranges *r, const ps_tensor_table *table,
                            const uint64_t *begins, uint32_t n_parts)
{
    *r = (ps_ready_ranges){.table = table, .n_parts = n_parts};
    PS_TRY(PS_NEW(&r->begins, n_parts, "ready gradients"));
    PS_TRY(PS_NEW(&r->left, n_parts, "ready gradients"));
    memcpy(r->begins, begins, n_parts * sizeof *begins);
    r->cap_ranges = (uint32_t)table->n_tensors + SPARE_RANGES;
    PS_TRY(PS_NEW(&r->ranges, r->cap_ranges, "ready ranges"));
    ps_ready_ranges_restart(r);
    return PS_OK;
}

ps_err ps_ready_ranges_init_chunks(ps_ready_ranges *r, const ps_tensor_table *table,
                                   const ps_plan *plan)
{
    uint64_t *begins;
    PS_TRY(PS_NEW(&begins, plan->n_chunks, "ready gradients"));
    for (uint32_t c = 0; c < plan->n_chunks; c++)
        begins[c] = plan->chunks[c].offset;
    const ps_err err = ps_ready_ranges_init(r, table, begins, plan->n_chunks);
    free(begins);
    return err;
}

void ps_ready_ranges_fini(ps_ready_ranges *r)
{
    free(r->begins);
    free(r->left);
    free(r->ranges);
    *r = (ps_ready_ranges){0};
}

static uint64_t part_end(const ps_ready_ranges *r, uint32_t part)
{
    return part ? r->begins[part - 1] : r->table->arena_count;
}

void ps_ready_ranges_restart(ps_ready_ranges *r)
{
    r->n_ranges = 0;
    r->n_complete = 0;
    for (uint32_t i = 0; i < r->n_parts; i++)
        r->left[i] = part_end(r, i) - r->begins[i];
}

/* The part that an element is in. */
static uint32_t ready_ranges_part_of(const ps_ready_ranges *r, uint64_t element)
{
    uint32_t low = 0, high = r->n_parts - 1;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (r->begins[middle] <= element)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void ps_ready_ranges_touched(const ps_ready_ranges *r, uint64_t begin, uint64_t end,
                             uint32_t *first, uint32_t *last)
{
    *first = ready_ranges_part_of(r, end - 1);
    *last = ready_ranges_part_of(r, begin);
}

/* The last tensor that begins at or before the element. */
static const ps_tensor *tensor_at(const ps_tensor_table *table, uint64_t element)
{
    int low = 0, high = table->n_tensors - 1;
    while (low < high) {
        const int middle = high - (high - low) / 2;
        if (table->tensors[middle].offset <= element)
            low = middle;
        else
            high = middle - 1;
    }
    return &table->tensors[low];
}

/* The end of the range, or of the gap after it. */
static uint64_t end_with_gap(const ps_tensor_table *table, uint64_t end)
{
    const ps_tensor *t = tensor_at(table, end - 1);
    if (end != t->offset + t->count) return end;
    const bool last = t == &table->tensors[table->n_tensors - 1];
    return last ? table->arena_count : t[1].offset;
}

/* The first range that begins at `end` or after it. */
static uint32_t ready_ranges_after(const ps_ready_ranges *r, uint64_t end)
{
    uint32_t at = r->n_ranges;
    while (at > 0 && r->ranges[at - 1].begin >= end)
        at--;
    return at;
}

ps_err ps_ready_ranges_check_new(const ps_ready_ranges *r, uint64_t begin, uint64_t end)
{
    const uint32_t at = ready_ranges_after(r, end);
    if (at == 0 || r->ranges[at - 1].end <= begin) return PS_OK;
    const ps_ready_range *other = &r->ranges[at - 1];
    const uint64_t from = begin > other->begin ? begin : other->begin;
    const uint64_t to = end < other->end ? end : other->end;
    const ps_tensor *t = tensor_at(r->table, from);
    return ps_err_set(PS_ERR_ARG,
                      "the gradient of %s was pushed before (elements %" PRIu64
                      " to %" PRIu64 " of it)",
                      t->name, from - t->offset, to - t->offset);
}

/* Puts a range at its place, joined with those that it meets. */
static ps_err ready_ranges_insert(ps_ready_ranges *r, uint64_t begin, uint64_t end)
{
    const uint32_t at = ready_ranges_after(r, end);
    PS_TRY(ps_ready_ranges_check_new(r, begin, end));
    const bool before = at > 0 && r->ranges[at - 1].end == begin;
    const bool after = at < r->n_ranges && r->ranges[at].begin == end;
    if (!before && !after)
        PS_TRY(ps_mem_room(&r->ranges, r->n_ranges, &r->cap_ranges, sizeof *r->ranges,
                           "ready ranges"));
    ps_ready_range *here = r->ranges + at;
    const size_t rest = (r->n_ranges - at) * sizeof *here;
    if (before && after) {
        here[-1].end = here->end;
        memmove(here, here + 1, rest - sizeof *here);
        r->n_ranges--;
    } else if (before) {
        here[-1].end = end;
    } else if (after) {
        here->begin = begin;
    } else {
        memmove(here + 1, here, rest);
        *here = (ps_ready_range){begin, end};
        r->n_ranges++;
    }
    return PS_OK;
}

ps_err ps_ready_ranges_add(ps_ready_ranges *r, uint64_t begin, uint64_t end,
                           uint32_t *complete, uint32_t *n)
{
    *n = 0;
    if (begin >= end || end > r->table->arena_count)
        return ps_err_set(PS_ERR_ARG,
                          "gradients %" PRIu64 " to %" PRIu64
                          " are ready, but there are %" PRIu64,
                          begin, end, r->table->arena_count);
    end = end_with_gap(r->table, end);
    PS_TRY(ready_ranges_insert(r, begin, end));
    uint32_t first, last;
    ps_ready_ranges_touched(r, begin, end, &first, &last);
    for (uint32_t i = first; i <= last; i++) {
        const uint64_t from = begin > r->begins[i] ? begin : r->begins[i];
        const uint64_t to = end < part_end(r, i) ? end : part_end(r, i);
        r->left[i] -= to - from;
        if (r->left[i] == 0) complete[(*n)++] = i;
    }
    r->n_complete += *n;
    return PS_OK;
}

bool ps_ready_ranges_all(const ps_ready_ranges *r)
{
    return r->n_complete == r->n_parts;
}

ps_err ps_ready_ranges_check_all(const ps_ready_ranges *r)
{
    if (ps_ready_ranges_all(r)) return PS_OK;
    const bool begins = r->n_ranges > 0 && r->ranges[0].begin == 0;
    return ps_err_set(PS_ERR_ARG, "%s was not pushed",
                      tensor_at(r->table, begins ? r->ranges[0].end : 0)->name);
}
