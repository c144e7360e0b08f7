#include "shard_rows_pages.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "rows_body.h"

enum { PAGE_BYTES = 4 << 20 }; // about

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
