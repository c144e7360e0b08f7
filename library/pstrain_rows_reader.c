#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interrupt.h"
#include "mem.h"
#include "pstrain.h"
#include "row_reader.h"

enum { TIMEOUT_MS = 30000 };

struct pstrain_rows_reader {
    ps_row_reader *reader;
    pid_t pid; // of the process that made it
    pstrain_interrupted_fn interrupted;
    void *interrupted_ctx;
    // Of a call, by table
    uint64_t *counts;
    const int64_t **ids;
    float **outs;
};

static bool reader_asks(void *reader)
{
    const pstrain_rows_reader *r = reader;
    return r->interrupted(r->interrupted_ctx) != 0;
}

static void reader_hook(pstrain_rows_reader *r, bool on)
{
    ps_interrupt_set_hook(on && r->interrupted ? reader_asks : NULL, r);
}

static ps_err reader_open(pstrain_rows_reader *r, const pstrain_rows_reader_options *o)
{
    const ps_row_reader_options options = {.address = o->address,
                                           .job = o->job ? o->job : "",
                                           .keys = o->keys ? o->keys : "",
                                           .timeout_ms = o->timeout_ms ? o->timeout_ms
                                                                       : TIMEOUT_MS};
    uint32_t n;
    PS_TRY(ps_row_reader_create(&options, &r->reader));
    ps_row_reader_tables(r->reader, &n);
    PS_TRY(PS_NEW(&r->counts, n, "a reader of rows"));
    PS_TRY(PS_NEW(&r->ids, n, "a reader of rows"));
    return PS_NEW(&r->outs, n, "a reader of rows");
}

int pstrain_rows_reader_open(const pstrain_rows_reader_options *options,
                             pstrain_rows_reader **out)
{
    pstrain_rows_reader_options whole = {0};
    pstrain_rows_reader *r;
    if (!out) return ps_err_set(PS_ERR_ARG, "pstrain_rows_reader_open: out is NULL");
    *out = NULL;
    if (!options || options->struct_size < sizeof options->struct_size ||
        options->struct_size > sizeof whole)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_rows_reader_open: options of a wrong size");
    memcpy(&whole, options, options->struct_size);
    if (!whole.address)
        return ps_err_set(PS_ERR_ARG, "pstrain_rows_reader_open: the address is NULL");
    PS_TRY(PS_NEW(out, 1, "a reader of rows"));
    r = *out;
    r->pid = getpid();
    r->interrupted = whole.interrupted;
    r->interrupted_ctx = whole.interrupted_ctx;
    reader_hook(r, true);
    const ps_err err = reader_open(r, &whole);
    reader_hook(r, false);
    if (err != PS_OK) pstrain_rows_reader_close(out);
    return (int)err;
}

void pstrain_rows_reader_close(pstrain_rows_reader **reader)
{
    pstrain_rows_reader *r = reader ? *reader : NULL;
    if (!r) return;
    if (r->pid == getpid()) ps_row_reader_destroy(&r->reader);
    free(r->counts);
    free(r->ids);
    free(r->outs);
    free(r);
    *reader = NULL;
}

int pstrain_rows_reader_tables(const pstrain_rows_reader *reader)
{
    uint32_t n = 0;
    if (reader) ps_row_reader_tables(reader->reader, &n);
    return (int)n;
}

int pstrain_rows_reader_table(const pstrain_rows_reader *reader, int index,
                              pstrain_rows_table *table, size_t table_size)
{
    const int n = pstrain_rows_reader_tables(reader);
    uint32_t unused;
    if (!table || index < 0 || index >= n)
        return ps_err_set(PS_ERR_ARG, "table %d of %d, or a NULL", index, n);
    const ps_row_spec *s = &ps_row_reader_tables(reader->reader, &unused)[index];
    const pstrain_rows_table whole = {
        .name = s->name,
        .dim = s->dim,
        .optimizer = ps_word_name(ps_row_optimizer_words, (int)s->optimizer),
        .lr = s->lr,
        .eps = s->eps,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .lr_decay = s->lr_decay,
        .initial_accumulator = s->initial_accumulator,
        .init = ps_word_name(ps_row_init_words, (int)s->init),
        .scale = s->init_scale,
        .seed = s->seed,
        .max_bytes = s->max_bytes,
        .evicts = s->full == PS_ROW_FULL_EVICT,
        .admit = s->admit,
        .expire = s->expire,
        .codec = ps_word_name(ps_row_codec_words, (int)s->codec)};
    memcpy(table, &whole, table_size < sizeof whole ? table_size : sizeof whole);
    return PSTRAIN_OK;
}

/* By table, out of the program's order. */
static ps_err reader_take_reads(pstrain_rows_reader *r, const void *reads, int n,
                                size_t size)
{
    const int tables = pstrain_rows_reader_tables(r);
    uint32_t unused;
    const ps_row_spec *specs = ps_row_reader_tables(r->reader, &unused);
    memset(r->counts, 0, (size_t)tables * sizeof *r->counts);
    for (int i = 0; i < n; i++) {
        pstrain_rows_read one;
        memcpy(&one, (const char *)reads + (size_t)i * size, sizeof one);
        if (one.table < 0 || one.table >= tables)
            return ps_err_set(PS_ERR_ARG, "rows of table %d of %d", one.table, tables);
        if (one.n > 0 && (!one.ids || !one.out || r->counts[one.table] > 0))
            return ps_err_set(PS_ERR_ARG, "rows of table %s: a NULL, or read twice",
                              specs[one.table].name);
        if (one.n > 0) r->counts[one.table] = one.n;
        r->ids[one.table] = one.ids;
        r->outs[one.table] = one.out;
    }
    return PS_OK;
}

int pstrain_rows_reader_read(pstrain_rows_reader *reader, const pstrain_rows_read *reads,
                             int n, size_t read_size, uint64_t steps[2])
{
    ps_row_steps made = {0};
    if (!reader || n < 0 || (n > 0 && !reads) || read_size < sizeof *reads)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_rows_reader_read: a NULL, or a wrong size");
    if (reader->pid != getpid())
        return ps_err_set(PS_ERR_ARG, "the reader belongs to the process that made it; "
                                      "after fork() make another one");
    PS_TRY(reader_take_reads(reader, reads, n, read_size));
    reader_hook(reader, true);
    const ps_err err = ps_row_reader_read(reader->reader, reader->counts, reader->ids,
                                          (float *const *)reader->outs, &made);
    reader_hook(reader, false);
    if (err == PS_OK && steps) {
        steps[0] = made.first;
        steps[1] = made.last;
    }
    return (int)err;
}
