/* Any bytes as the body of a message of rows. What a reader takes has no more than there
 * is: all of it is read. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rows_body.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t sum_of(const void *from, uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes; i++)
        sum += ((const uint8_t *)from)[i];
    return sum;
}

/* The first byte says which tables there are. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const uint32_t n_tables = 1 + data[0] % 5, width = 1 + data[0] / 5;
    const uint64_t n = size - 1;
    uint64_t *body = malloc(n + 1); // aligned, and its end is watched
    if (!body) return 0;
    memcpy(body, data + 1, n);
    ps_rows_pull pull;
    ps_rows_push push;
    ps_rows_load load;
    ps_rows_page page;
    ps_rows_save save;
    ps_rows_keep keep;
    ps_rows_kept kept;
    ps_rows_return back;
    ps_rows_ask ask;
    ps_rows_twin_point point;
    ps_rows_twin_page twin;
    uint64_t numbers[2];
    ps_row_spec *specs;
    uint32_t n_shards, n_specs;
    volatile uint64_t sum = 0;
    if (ps_rows_pull_read(body, n, n_tables, &pull) == PS_OK)
        sum = (pull.places ? sum_of(pull.places, n_tables * sizeof *pull.places)
                           : sum_of(pull.ids, pull.n * 8)) +
              sum_of(pull.counts, n_tables * 4ul);
    if (ps_rows_push_read(body, n, n_tables, &push) == PS_OK)
        sum = sum_of(push.grads, push.n * 4) + sum_of(push.rates, n_tables * 8ul) +
              sum_of(push.has, (uint64_t)push.n_pulls * n_tables);
    if (ps_rows_load_read(body, n, &load) == PS_OK)
        sum = sum_of(load.ids, load.n * 8) + sum_of(load.ages, load.n * 8) +
              sum_of(load.values, load.n * load.width * 4);
    if (ps_rows_page_read(body, n, width, &page) == PS_OK)
        sum = sum_of(page.ids, (page.n + page.n_candidates) * 8) +
              sum_of(page.ages, (page.n + page.n_candidates) * 8) +
              sum_of(page.values, page.n * width * 4);
    if (ps_rows_save_read(body, n, &save) == PS_OK) sum = save.table;
    if (ps_rows_keep_read(body, n, &keep) == PS_OK)
        sum = sum_of(keep.path, keep.path_bytes);
    if (ps_rows_kept_read(body, n, n_tables, &kept) == PS_OK)
        sum = sum_of(kept.tables, n_tables * sizeof *kept.tables) +
              sum_of(kept.fault, kept.fault_bytes);
    if (ps_rows_return_read(body, n, &back) == PS_OK)
        sum = sum_of(back.folder, back.folder_bytes) +
              sum_of(back.manifest, back.manifest_bytes);
    if (ps_rows_ask_read(body, n, n_tables, &ask) == PS_OK)
        sum = sum_of(ask.ids, ask.n * 8) + sum_of(ask.counts, n_tables * 4ul);
    if (ps_rows_twin_point_read(body, n, n_tables, &point) == PS_OK)
        sum = sum_of(point.clocks, n_tables * 16ul);
    if (ps_rows_twin_page_read(body, n, n_tables, &twin) == PS_OK)
        sum = sum_of(twin.clocks, n_tables * 16ul) + sum_of(twin.piece, twin.bytes);
    if (ps_rows_twin_ask_read(body, n, numbers) == PS_OK ||
        ps_rows_twin_number_read(body, n, PS_TWIN_WANTS, numbers) == PS_OK)
        sum = numbers[0];
    if (ps_rows_tables_read(body, n, &n_shards, &specs, &n_specs) == PS_OK) {
        sum = sum_of(specs, n_specs * sizeof *specs);
        free(specs);
    }
    (void)sum;
    free(body);
    return 0;
}
