#include "row_lookup.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Negative ones are seldom meant: they mark what is missing. */
static ps_err lookup_check_ids(const ps_row_lookup *l, const char *table)
{
    int64_t all = 0, most = 0;
    uint64_t i = 0;
    for (uint64_t k = 0; k < l->n_ids; k++) {
        all |= l->ids[k];
        most = l->ids[k] > most ? l->ids[k] : most;
    }
    if (all >= 0 && (l->n_rows == 0 || (uint64_t)most < l->n_rows || l->n_ids == 0))
        return PS_OK;
    while (i < l->n_ids &&
           (l->ids[i] >= 0 || (l->has_padding && l->ids[i] == l->padding)) &&
           (l->n_rows == 0 || l->ids[i] < 0 || (uint64_t)l->ids[i] < l->n_rows))
        i++;
    if (i == l->n_ids) return PS_OK;
    if (l->ids[i] >= 0)
        return ps_err_set(PS_ERR_ARG,
                          "table %s: id %" PRId64 " at place %" PRIu64
                          " is not below %" PRIu64 ", the number of its rows",
                          table, l->ids[i], i, l->n_rows);
    return ps_err_set(PS_ERR_ARG,
                      "table %s: id %" PRId64 " at place %" PRIu64
                      " is negative: ids are from 0 to 2^63 - 1, and the padding",
                      table, l->ids[i], i);
}

ps_err ps_row_lookup_check(const ps_row_lookup *l, const ps_row_spec *specs, int n,
                           bool ahead)
{
    const char *why = NULL;
    if (l->table < 0 || l->table >= n)
        return ps_err_set(PS_ERR_ARG, "a lookup of table %d of %d", l->table, n);
    if (!l->ids && l->n_ids > 0)
        why = "its ids are NULL";
    else if (ahead)
        why = NULL;
    else if (l->bags && l->n_bags == 0 && l->n_ids > 0)
        why = "there are ids, and no bags";
    else if (l->weights && !(l->bags && l->mode == PS_ROW_SUM))
        why = "weights go with sums alone";
    else if (!l->out && (l->bags ? l->n_bags : l->n_ids) > 0)
        why = "out is NULL";
    if (why)
        return ps_err_set(PS_ERR_ARG, "a lookup of table %s: %s", specs[l->table].name,
                          why);
    return lookup_check_ids(l, specs[l->table].name);
}

void ps_row_part_free(ps_row_part *p)
{
    ps_row_batch_fini(&p->batch);
    free(p->offsets);
    free(p->weights);
    free(p->own_rows);
    free(p->own_grads);
    free(p->asked);
    *p = (ps_row_part){0};
    ps_row_batch_init(&p->batch);
}

ps_err ps_row_part_split(ps_row_part *p, const ps_row_lookup *l, const ps_row_spec *specs,
                         uint32_t n_shards)
{
    const ps_row_spec *spec = &specs[l->table];
    const uint64_t padding = (uint64_t)l->padding;
    p->table = l->table;
    p->has = false;
    p->has_padding = l->has_padding;
    p->padding = l->padding;
    p->bags.dim = spec->dim;
    return ps_row_batch_split(&p->batch, spec->number, n_shards, l->n_ids,
                              (const uint64_t *)l->ids, l->has_padding ? &padding : NULL);
}

ps_err ps_row_part_set_bags(ps_row_part *p, const ps_row_lookup *l,
                            const ps_row_spec *specs)
{
    const ps_row_spec *spec = &specs[l->table];
    const uint64_t n_bags = l->bags ? l->n_bags : l->n_ids;
    if (l->bags && l->offsets) {
        PS_TRY(ps_row_room(&p->offsets, &p->offsets_room, n_bags, sizeof *p->offsets));
        if (n_bags) memcpy(p->offsets, l->offsets, n_bags * sizeof *p->offsets);
    }
    if (l->weights) {
        PS_TRY(ps_row_room(&p->weights, &p->weights_room, l->n_ids, sizeof *p->weights));
        memcpy(p->weights, l->weights, l->n_ids * sizeof *p->weights);
    }
    p->bags =
        (ps_row_bags){.mode = l->mode,
                      .dim = spec->dim,
                      .n_lookups = l->n_ids,
                      .n_bags = n_bags,
                      .offsets = l->bags && l->offsets && n_bags > 0 ? p->offsets : NULL,
                      .row = p->batch.row,
                      .weights = l->weights ? p->weights : NULL};
    const ps_err err = ps_row_bags_check(&p->bags);
    return err != PS_OK ? ps_err_prefix(err, "table %s", spec->name) : PS_OK;
}

uint64_t ps_row_part_bytes(const ps_row_part *p)
{
    return (uint64_t)p->batch.n_rows * p->bags.dim * sizeof(float);
}

uint64_t ps_row_part_at_shard(const ps_row_part *p, uint32_t shard)
{
    return p->batch.begin[shard + 1] - p->batch.begin[shard];
}

bool ps_row_part_takes(const ps_row_part *p, const float *grad)
{
    return (p->rows || p->batch.n_rows == 0) && (grad || p->bags.n_bags == 0);
}
