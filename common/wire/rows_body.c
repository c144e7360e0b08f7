#include "rows_body.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

#define WORD sizeof(uint64_t)

static ps_err rows_malformed(const char *what, uint64_t bytes)
{
    return ps_err_set(PS_ERR_PROTOCOL, "a %s of %" PRIu64 " bytes that is malformed",
                      what, bytes);
}

static uint32_t rows_u32(const void *body, uint64_t at)
{
    uint32_t value;
    memcpy(&value, (const uint8_t *)body + at, sizeof value);
    return value;
}

static uint64_t rows_u64(const void *body, uint64_t at)
{
    uint64_t value;
    memcpy(&value, (const uint8_t *)body + at, sizeof value);
    return value;
}

static const void *rows_at(const void *body, uint64_t at)
{
    return (const uint8_t *)body + at;
}

/* ---- PULL_ROWS ---- */

uint64_t ps_rows_pull_head(uint32_t n_tables)
{
    return WORD + ps_rows_aligned(n_tables * sizeof(uint32_t));
}

void ps_rows_pull_write(void *body, uint32_t how, const uint32_t *counts,
                        uint32_t n_tables)
{
    memset(body, 0, ps_rows_pull_head(n_tables));
    memcpy(body, &how, sizeof how);
    memcpy((uint8_t *)body + WORD, counts, n_tables * sizeof *counts);
}

ps_err ps_rows_pull_read(const void *body, uint64_t bytes, uint32_t n_tables,
                         ps_rows_pull *out)
{
    const uint64_t head = ps_rows_pull_head(n_tables);
    const uint32_t all = PS_ROWS_TRAINS | PS_ROWS_SHARED | PS_ROWS_AHEAD;
    if (bytes < head || rows_u32(body, 0) > all || rows_u32(body, sizeof all) != 0)
        return rows_malformed("PULL_ROWS", bytes);
    const uint32_t how = rows_u32(body, 0);
    const bool shared = how & PS_ROWS_SHARED;
    *out = (ps_rows_pull){.trains = how & PS_ROWS_TRAINS,
                          .ahead = how & PS_ROWS_AHEAD,
                          .counts = rows_at(body, WORD),
                          .ids = shared ? NULL : rows_at(body, head),
                          .places = shared ? rows_at(body, head) : NULL};
    for (uint32_t t = 0; t < n_tables; t++)
        out->n += out->counts[t];
    const uint64_t rest = shared ? n_tables * sizeof *out->places : out->n * WORD;
    return bytes == head + rest && out->n <= PS_ROWS_ARENA_BYTES / WORD
               ? PS_OK
               : rows_malformed("PULL_ROWS", bytes);
}

/* ---- PUSH_ROWS ---- */

uint64_t ps_rows_push_head(uint32_t n_tables, uint32_t n_pulls)
{
    return n_tables * sizeof(double) + WORD +
           ps_rows_aligned((uint64_t)n_pulls * n_tables);
}

void ps_rows_push_write(void *body, const double *rates, uint32_t n_tables,
                        uint32_t n_pulls)
{
    memset(body, 0, ps_rows_push_head(n_tables, n_pulls));
    memcpy(body, rates, n_tables * sizeof *rates);
    memcpy((uint8_t *)body + n_tables * sizeof *rates, &n_pulls, sizeof n_pulls);
}

ps_err ps_rows_push_read(const void *body, uint64_t bytes, uint32_t n_tables,
                         ps_rows_push *out)
{
    const uint64_t rates = n_tables * sizeof(double);
    if (bytes < rates + WORD) return rows_malformed("PUSH_ROWS", bytes);
    const uint32_t n_pulls = rows_u32(body, rates);
    const uint64_t head = ps_rows_push_head(n_tables, n_pulls);
    if (bytes < head || (bytes - head) % sizeof(float) != 0)
        return rows_malformed("PUSH_ROWS", bytes);
    *out = (ps_rows_push){.rates = body,
                          .n_pulls = n_pulls,
                          .has = rows_at(body, rates + WORD),
                          .grads = rows_at(body, head),
                          .n = (bytes - head) / sizeof(float)};
    return PS_OK;
}

/* ---- LOAD_ROWS ---- */

enum { LOAD_HEAD = 40, PAGE_HEAD = 40, SAVE_BYTES = 16, MOST_WIDTH = 1 << 20 };

uint64_t ps_rows_load_bytes(uint64_t n, uint32_t width)
{
    return LOAD_HEAD + n * (WORD + sizeof(ps_rows_age) + width * sizeof(float));
}

void ps_rows_load_write(void *body, const ps_rows_load *load)
{
    const uint32_t head[2] = {load->table, load->width};
    const uint64_t rest[4] = {load->steps, load->n, load->clock, load->begins};
    memcpy(body, head, sizeof head);
    memcpy((uint8_t *)body + sizeof head, rest, sizeof rest);
}

ps_err ps_rows_load_read(const void *body, uint64_t bytes, ps_rows_load *out)
{
    if (bytes < LOAD_HEAD) return rows_malformed("LOAD_ROWS", bytes);
    const uint64_t n = rows_u64(body, 2 * WORD);
    *out = (ps_rows_load){.table = rows_u32(body, 0),
                          .width = rows_u32(body, sizeof(uint32_t)),
                          .steps = rows_u64(body, WORD),
                          .n = n,
                          .clock = rows_u64(body, 3 * WORD),
                          .begins = rows_u64(body, 4 * WORD),
                          .ids = rows_at(body, LOAD_HEAD)};
    if (n > bytes || out->width > MOST_WIDTH || out->begins > 1 ||
        out->clock > UINT32_MAX || ps_rows_load_bytes(n, out->width) != bytes)
        return rows_malformed("LOAD_ROWS", bytes);
    out->ages = rows_at(body, LOAD_HEAD + n * WORD);
    out->values = rows_at(body, LOAD_HEAD + n * (WORD + sizeof(ps_rows_age)));
    return PS_OK;
}

/* ---- SAVE_ROWS, and what answers it ---- */

ps_err ps_rows_save_read(const void *body, uint64_t bytes, ps_rows_save *out)
{
    if (bytes != SAVE_BYTES) return rows_malformed("SAVE_ROWS", bytes);
    memcpy(out, body, sizeof *out);
    return out->zero == 0 ? PS_OK : rows_malformed("SAVE_ROWS", bytes);
}

/* n: of rows and candidates. */
static uint64_t page_values_at(uint64_t n)
{
    return PAGE_HEAD + n * (WORD + sizeof(ps_rows_age));
}

uint64_t ps_rows_page_bytes(uint64_t n, uint64_t n_candidates, uint32_t width)
{
    return page_values_at(n + n_candidates) + n * width * sizeof(float);
}

void ps_rows_page_write(void *body, const ps_rows_page *page)
{
    const uint64_t head[5] = {page->next, page->n, page->n_candidates, page->steps,
                              page->clock};
    memcpy(body, head, sizeof head);
}

ps_err ps_rows_page_read(const void *body, uint64_t bytes, uint32_t width,
                         ps_rows_page *out)
{
    if (bytes < PAGE_HEAD) return rows_malformed("page of rows", bytes);
    const uint64_t n = rows_u64(body, WORD), m = rows_u64(body, 2 * WORD);
    if (n > bytes || m > bytes || ps_rows_page_bytes(n, m, width) != bytes)
        return rows_malformed("page of rows", bytes);
    *out = (ps_rows_page){.next = rows_u64(body, 0),
                          .n = n,
                          .n_candidates = m,
                          .steps = rows_u64(body, 3 * WORD),
                          .clock = rows_u64(body, 4 * WORD),
                          .ids = rows_at(body, PAGE_HEAD),
                          .ages = rows_at(body, PAGE_HEAD + (n + m) * WORD),
                          .values = rows_at(body, page_values_at(n + m))};
    return PS_OK;
}

/* ---- KEEP_ROWS, and what answers it ---- */

uint64_t ps_rows_keep_bytes(const ps_rows_keep *keep)
{
    return 2 * WORD + keep->path_bytes;
}

void ps_rows_keep_write(void *body, const ps_rows_keep *keep)
{
    const uint64_t head[2] = {keep->point, keep->writes};
    memcpy(body, head, sizeof head);
    if (keep->path_bytes)
        memcpy((uint8_t *)body + sizeof head, keep->path, keep->path_bytes);
}

ps_err ps_rows_keep_read(const void *body, uint64_t bytes, ps_rows_keep *out)
{
    if (bytes < 2 * WORD || rows_u64(body, WORD) > UINT32_MAX)
        return rows_malformed("KEEP_ROWS", bytes);
    *out = (ps_rows_keep){.point = rows_u64(body, 0),
                          .writes = rows_u32(body, WORD),
                          .path = rows_at(body, 2 * WORD),
                          .path_bytes = bytes - 2 * WORD};
    return PS_OK;
}

uint64_t ps_rows_kept_bytes(const ps_rows_kept *kept, uint32_t n_tables)
{
    return WORD + n_tables * sizeof *kept->tables + kept->fault_bytes;
}

void ps_rows_kept_write(void *body, const ps_rows_kept *kept, uint32_t n_tables)
{
    const uint64_t bytes = n_tables * sizeof *kept->tables;
    memcpy(body, &kept->since, WORD);
    memcpy((uint8_t *)body + WORD, kept->tables, bytes);
    if (kept->fault_bytes)
        memcpy((uint8_t *)body + WORD + bytes, kept->fault, kept->fault_bytes);
}

ps_err ps_rows_kept_read(const void *body, uint64_t bytes, uint32_t n_tables,
                         ps_rows_kept *out)
{
    const uint64_t head = WORD + n_tables * sizeof *out->tables;
    if (bytes < head) return rows_malformed("answer to KEEP_ROWS", bytes);
    *out = (ps_rows_kept){.since = rows_u64(body, 0),
                          .tables = rows_at(body, WORD),
                          .fault = rows_at(body, head),
                          .fault_bytes = bytes - head};
    return PS_OK;
}

/* ---- RETURN_ROWS ---- */

uint64_t ps_rows_return_bytes(const ps_rows_return *back)
{
    return 2 * WORD + back->folder_bytes + back->manifest_bytes;
}

void ps_rows_return_write(void *body, const ps_rows_return *back)
{
    const uint64_t head[2] = {back->point, back->folder_bytes};
    uint8_t *to = (uint8_t *)body + sizeof head;
    memcpy(body, head, sizeof head);
    memcpy(to, back->folder, back->folder_bytes);
    memcpy(to + back->folder_bytes, back->manifest, back->manifest_bytes);
}

ps_err ps_rows_return_read(const void *body, uint64_t bytes, ps_rows_return *out)
{
    if (bytes < 2 * WORD || rows_u64(body, WORD) > bytes - 2 * WORD)
        return rows_malformed("RETURN_ROWS", bytes);
    const uint64_t folder = rows_u64(body, WORD);
    *out = (ps_rows_return){.point = rows_u64(body, 0),
                            .folder = rows_at(body, 2 * WORD),
                            .folder_bytes = folder,
                            .manifest = rows_at(body, 2 * WORD + folder),
                            .manifest_bytes = bytes - 2 * WORD - folder};
    return PS_OK;
}

/* ---- twins ---- */

uint64_t ps_rows_twin_point_bytes(uint32_t n_tables)
{
    return 5 * WORD + n_tables * sizeof(ps_row_clock);
}

void ps_rows_twin_point_write(void *body, const ps_rows_twin_point *p, uint32_t n_tables)
{
    const uint64_t head[5] = {p->base, p->point, p->step, p->loads, p->whole};
    memcpy(body, head, sizeof head);
    memcpy((uint8_t *)body + sizeof head, p->clocks, n_tables * sizeof *p->clocks);
}

ps_err ps_rows_twin_point_read(const void *body, uint64_t bytes, uint32_t n_tables,
                               ps_rows_twin_point *out)
{
    if (bytes != ps_rows_twin_point_bytes(n_tables))
        return rows_malformed("TWIN_POINT", bytes);
    *out = (ps_rows_twin_point){.base = rows_u64(body, 0),
                                .point = rows_u64(body, WORD),
                                .step = rows_u64(body, 2 * WORD),
                                .loads = rows_u64(body, 3 * WORD),
                                .whole = rows_u64(body, 4 * WORD),
                                .clocks = rows_at(body, 5 * WORD)};
    return out->point > 0 && out->whole <= 1 ? PS_OK
                                             : rows_malformed("TWIN_POINT", bytes);
}

uint64_t ps_rows_twin_page_head(uint32_t n_tables)
{
    return 3 * WORD + n_tables * sizeof(ps_row_clock);
}

void ps_rows_twin_page_write(void *body, const ps_rows_twin_page *p, uint32_t n_tables)
{
    const uint64_t head[3] = {p->has, p->step, p->loads};
    memcpy(body, head, sizeof head);
    memcpy((uint8_t *)body + sizeof head, p->clocks, n_tables * sizeof *p->clocks);
}

ps_err ps_rows_twin_page_read(const void *body, uint64_t bytes, uint32_t n_tables,
                              ps_rows_twin_page *out)
{
    const uint64_t head = ps_rows_twin_page_head(n_tables);
    if (bytes < head || rows_u64(body, 0) >= PS_TWIN_HAS)
        return rows_malformed("page of rows", bytes);
    *out = (ps_rows_twin_page){.has = rows_u64(body, 0),
                               .step = rows_u64(body, WORD),
                               .loads = rows_u64(body, 2 * WORD),
                               .clocks = rows_at(body, 3 * WORD),
                               .piece = rows_at(body, head),
                               .bytes = bytes - head};
    return PS_OK;
}

ps_err ps_rows_twin_ask_read(const void *body, uint64_t bytes, uint64_t out[2])
{
    if (bytes != 2 * WORD) return rows_malformed("TWIN_ASK", bytes);
    memcpy(out, body, bytes);
    return out[1] <= 1 ? PS_OK : rows_malformed("TWIN_ASK", bytes);
}

ps_err ps_rows_twin_number_read(const void *body, uint64_t bytes, uint64_t most,
                                uint64_t *out)
{
    if (bytes != WORD) return rows_malformed("TWIN", bytes);
    *out = rows_u64(body, 0);
    return *out < most ? PS_OK : rows_malformed("TWIN", bytes);
}

/* ---- readers ---- */

uint64_t ps_rows_ask_head(uint32_t n_tables)
{
    return ps_rows_aligned(n_tables * sizeof(uint32_t));
}

ps_err ps_rows_ask_read(const void *body, uint64_t bytes, uint32_t n_tables,
                        ps_rows_ask *out)
{
    const uint64_t head = ps_rows_ask_head(n_tables);
    if (bytes < head) return rows_malformed("READ_ROWS", bytes);
    *out = (ps_rows_ask){.counts = body, .ids = rows_at(body, head)};
    for (uint32_t t = 0; t < n_tables; t++)
        out->n += out->counts[t];
    return bytes == head + out->n * WORD ? PS_OK : rows_malformed("READ_ROWS", bytes);
}

void ps_rows_tables_write(ps_mp_writer *w, uint32_t n_shards,
                          const ps_row_spec *const *specs, uint32_t n)
{
    ps_mp_write_array(w, 1 + (size_t)n);
    ps_mp_write_uint(w, n_shards);
    for (uint32_t t = 0; t < n; t++) {
        ps_mp_writer one;
        ps_mp_writer_init(&one);
        ps_row_spec_write(&one, specs[t]);
        if (ps_mp_writer_end(&one) != PS_OK) w->failed = true;
        ps_mp_write_bin(w, one.base, one.used);
        ps_mp_writer_fini(&one);
    }
}

static ps_err rows_tables_read(ps_mp_reader *r, uint64_t bytes, ps_row_spec *specs,
                               uint32_t n)
{
    for (uint32_t t = 0; t < n && !r->failed; t++) {
        size_t size;
        const void *spec = ps_mp_read_bin(r, &size, bytes);
        if (r->failed) break;
        PS_TRY(ps_row_spec_read(spec, size, "TABLES", &specs[t]));
        if (specs[t].number != t) r->failed = true;
    }
    return ps_mp_reader_end(r) ? PS_OK : rows_malformed("TABLES", bytes);
}

ps_err ps_rows_tables_read(const void *body, uint64_t bytes, uint32_t *n_shards,
                           ps_row_spec **specs, uint32_t *n)
{
    ps_mp_reader r;
    ps_mp_reader_init(&r, body, bytes);
    const size_t items = ps_mp_read_array(&r, 1 + PS_ROW_TABLES_MAX);
    *n_shards = (uint32_t)ps_mp_read_uint(&r, UINT32_MAX);
    if (r.failed || items == 0 || *n_shards == 0) return rows_malformed("TABLES", bytes);
    *n = (uint32_t)(items - 1);
    PS_TRY(PS_NEW(specs, items, "embedding tables"));
    const ps_err err = rows_tables_read(&r, bytes, *specs, *n);
    if (err == PS_OK) return PS_OK;
    free(*specs);
    *specs = NULL;
    return err;
}
