#include "shard_rows_pages.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "rows_body.h"

enum { PAGE_BYTES = 4 << 20 }; // about

/* ---- saving ---- */

/* Rows of a page; at least one. */
static uint64_t pages_most(const ps_row_table *table)
{
    const uint64_t bytes = ps_row_spec_width(&table->spec) * sizeof(float);
    return bytes < PAGE_BYTES ? PAGE_BYTES / bytes : 1;
}

/* The end of the partitions from `at` on that fit a page; at least one. */
static uint32_t pages_end(const ps_row_table *table, uint32_t at)
{
    const uint64_t most = pages_most(table);
    uint64_t rows = 0;
    do {
        rows += table->index.counts[at++];
    } while (at < table->end_partition && rows + table->index.counts[at] <= most);
    return at;
}

static ps_err pages_make(const ps_row_table *table, const ps_row_view *views, uint64_t n,
                         ps_rows_page *page, void **out, uint64_t *bytes)
{
    const uint32_t width = ps_row_spec_width(&table->spec);
    page->n = page->n_candidates = 0;
    for (uint64_t i = 0; i < n; i++)
        *(views[i].row ? &page->n : &page->n_candidates) += 1;
    *bytes = ps_rows_page_bytes(page->n, page->n_candidates, width);
    PS_TRY(ps_mem_zalloc(out, *bytes, 1, "a page of rows"));
    ps_rows_page_write(*out, page);
    ps_rows_page at;
    PS_TRY(ps_rows_page_read(*out, *bytes, width, &at));
    uint64_t *ids = (uint64_t *)(uintptr_t)at.ids, row = 0, candidate = page->n;
    ps_rows_age *ages = (ps_rows_age *)(uintptr_t)at.ages;
    float *values = (float *)(uintptr_t)at.values;
    for (uint64_t i = 0; i < n; i++) {
        const ps_row_view *v = &views[i];
        const uint64_t to = v->row ? row++ : candidate++;
        ids[to] = v->id;
        ages[to] = (ps_rows_age){v->version, v->count};
        if (v->row) memcpy(values + to * width, v->row, width * sizeof *values);
    }
    return PS_OK;
}

/* views (n): of the partitions at .. end - 1, of which only a single one may have more
 * rows than a page; those from `place` on. */
static ps_err pages_make_from(const ps_row_store *store, uint64_t step,
                              const ps_rows_save *save, uint32_t end,
                              const ps_row_view *views, uint64_t n, void **out,
                              uint64_t *bytes)
{
    const ps_row_table *table = &store->tables[save->table];
    ps_rows_page page = {.next = end < table->end_partition ? end : 0,
                         .steps = store->clocks[save->table].made,
                         .clock = step + store->clocks[save->table].ahead};
    if (save->place > n)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a request for row %u of partition %u of table %u, which has "
                          "%" PRIu64,
                          save->place, save->partition, save->table, n);
    uint64_t some = n - save->place;
    if (some > pages_most(table)) {
        some = pages_most(table);
        page.next = (save->place + some) << 32 | (end - 1);
    }
    return pages_make(table, views + save->place, some, &page, out, bytes);
}

ps_err ps_shard_rows_page(const ps_row_store *store, uint64_t step, const void *body,
                          uint64_t bytes, void **page, uint64_t *page_bytes)
{
    ps_rows_save save;
    ps_row_view *views = NULL;
    uint64_t n = 0;
    PS_TRY(ps_rows_save_read(body, bytes, &save));
    if (save.table >= store->n || save.partition >= PS_ROW_PARTITIONS)
        return ps_err_set(PS_ERR_PROTOCOL, "a request for partition %u of table %u",
                          save.partition, save.table);
    const ps_row_table *table = &store->tables[save.table];
    uint32_t at = save.partition, end = save.partition;
    if (at < table->first_partition) at = end = table->first_partition;
    if (at < table->end_partition) end = save.place > 0 ? at + 1 : pages_end(table, at);
    if (at < end) PS_TRY(ps_row_table_list(table, at, end, 0, &views, &n));
    const ps_err err =
        pages_make_from(store, step, &save, end, views, n, page, page_bytes);
    free(views);
    return err;
}

/* ---- loading ---- */

/* With state, or no rows yet: one by one, with their versions. */
static ps_err pages_put(ps_row_table *table, const ps_rows_load *load, uint64_t version)
{
    for (uint64_t i = 0; i < load->n; i++) {
        const ps_rows_age *age = &load->ages[i];
        const ps_row_view view = {.id = load->ids[i],
                                  .version = load->clock ? age->version : version,
                                  .count = age->count,
                                  .row = load->width ? load->values + i * load->width
                                                     : NULL};
        PS_TRY(ps_row_table_put(table, &view));
    }
    return PS_OK;
}

/* No row is newer than the clock, and what is no row yet has been counted. */
static ps_err pages_check_ages(const ps_row_table *table, const ps_rows_load *load)
{
    for (uint64_t i = 0; i < load->n; i++) {
        const ps_rows_age *age = &load->ages[i];
        const bool candidate = age->count > 0 && age->count < PS_ROW_CANDIDATE;
        if ((load->clock && age->version > load->clock) ||
            (load->width ? age->count > 0 : !candidate))
            return ps_err_set(PS_ERR_PROTOCOL,
                              "id %" PRIu64 " of table %s to load, of version %u of "
                              "%" PRIu64 ", with %u gradients while it was no row",
                              load->ids[i], table->spec.name, age->version, load->clock,
                              age->count);
    }
    return PS_OK;
}

static ps_err pages_check_load(const ps_row_table *table, const ps_rows_load *load)
{
    const uint32_t dim = table->spec.dim, width = ps_row_spec_width(&table->spec);
    if (load->width != 0 && load->width != dim && load->width != width)
        return ps_err_set(PS_ERR_PROTOCOL, "rows of %u numbers; table %s has %u or %u",
                          load->width, table->spec.name, dim, width);
    PS_TRY(ps_row_table_check_ids(table, load->n, load->ids));
    return pages_check_ages(table, load);
}

static ps_err pages_take_load(ps_row_store *store, uint64_t step,
                              const ps_rows_load *load)
{
    ps_row_table *table = &store->tables[load->table];
    ps_row_clock *clock = &store->clocks[load->table];
    if (load->begins) PS_TRY(ps_row_table_clear(table));
    *clock = (ps_row_clock){load->steps, load->clock ? load->clock - step : clock->ahead};
    const uint64_t version = step + clock->ahead; // as if the step before had made them
    store->loads++;
    store->full = 0; // an incremental file would not know of them
    if (load->width == table->spec.dim && load->width != ps_row_spec_width(&table->spec))
        return ps_row_table_set(table, load->n, load->ids, load->values, version);
    return pages_put(table, load, version);
}

ps_err ps_shard_rows_load(ps_row_store *store, uint64_t step, const void *body,
                          uint64_t bytes)
{
    ps_rows_load load;
    PS_TRY(ps_rows_load_read(body, bytes, &load));
    if (load.table >= store->n)
        return ps_err_set(PS_ERR_PROTOCOL, "rows of table %u; there are %u", load.table,
                          store->n);
    PS_TRY(pages_check_load(&store->tables[load.table], &load));
    return pages_take_load(store, step, &load);
}
