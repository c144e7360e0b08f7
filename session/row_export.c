#include "row_export.h"

#include <stdio.h>
#include <stdlib.h>

#include "mem.h"
#include "row_spool.h"
#include "safetensors.h"

enum { NAME_BYTES = PS_ROW_NAME_BYTES + 8 };

static int export_table(const ps_row_export_options *o, int i)
{
    return o->tables ? o->tables[i] : i;
}

static ps_err export_take(ps_row_spool *spool, ps_row_client *client, int at, int table,
                          uint32_t dim)
{
    const uint32_t width = ps_row_client_width(client, table);
    ps_row_page page = {0};
    do {
        PS_TRY(ps_row_client_save(client, table, &page));
        PS_TRY(ps_row_spool_add(spool, at, dim, page.n, page.ids, page.values, width));
    } while (page.next);
    return PS_OK;
}

/* The tensors of the file, ids and then weights; their data comes later. names: theirs.
 */
static void export_list(const ps_row_spool *spool, const ps_row_export_options *o,
                        char (*names)[NAME_BYTES], ps_st_tensor *list)
{
    for (int i = 0; i < o->n; i++) {
        const ps_row_spec *spec = &o->specs[export_table(o, i)];
        const uint64_t n = spool->tables[i].n;
        const int weight = o->n + i;
        snprintf(names[i], NAME_BYTES, "%s.ids", spec->name);
        snprintf(names[weight], NAME_BYTES, "%s.weight", spec->name);
        list[i] = (ps_st_tensor){.name = names[i],
                                 .dtype = "I64",
                                 .dims = {1, {(int64_t)n}},
                                 .bytes = n * sizeof(int64_t)};
        list[weight] = (ps_st_tensor){.name = names[weight],
                                      .dtype = "F32",
                                      .dims = {2, {(int64_t)n, spec->dim}},
                                      .bytes = n * spec->dim * sizeof(float)};
    }
}

typedef struct export_writer {
    ps_st_writer file;
    uint64_t ids_at, weights_at; // of the table
    uint32_t dim;
} export_writer;

static ps_err export_put(void *ctx, uint64_t first, uint64_t n, const int64_t *ids,
                         const float *rows)
{
    export_writer *w = ctx;
    const uint64_t row = w->dim * sizeof *rows;
    PS_TRY(ps_st_put(&w->file, w->ids_at + first * sizeof *ids, ids, n * sizeof *ids));
    return ps_st_put(&w->file, w->weights_at + first * row, rows, n * row);
}

static ps_err export_write(const ps_row_spool *spool, const ps_row_export_options *o,
                           const ps_st_tensor *list)
{
    export_writer w = {0};
    ps_err err = ps_st_begin(&w.file, o->path, list, 2 * o->n, o->metadata, o->n_meta);
    for (int i = 0; i < o->n; i++)
        w.weights_at += list[i].bytes;
    for (int i = 0; i < o->n && err == PS_OK; i++) {
        w.dim = spool->tables[i].dim;
        err = ps_row_spool_merge(spool, i, export_put, &w);
        w.ids_at += list[i].bytes;
        w.weights_at += list[o->n + i].bytes;
    }
    return ps_st_end(&w.file, err);
}

static ps_err export_write_spooled(const ps_row_spool *spool,
                                   const ps_row_export_options *o)
{
    const size_t n = 2 * (size_t)o->n;
    ps_st_tensor *list;
    char(*names)[NAME_BYTES];
    PS_TRY(PS_NEW(&list, n, o->path));
    ps_err err = PS_NEW(&names, n, o->path);
    if (err == PS_OK) {
        export_list(spool, o, names, list);
        err = export_write(spool, o, list);
        free(names);
    }
    free(list);
    return err;
}

ps_err ps_row_export(ps_row_client *client, const ps_row_export_options *o)
{
    ps_row_spool spool;
    ps_err err = ps_row_spool_open(&spool, o->path, o->n);
    for (int i = 0; i < o->n && err == PS_OK; i++) {
        const int table = export_table(o, i);
        err = export_take(&spool, client, i, table, o->specs[table].dim);
    }
    if (err == PS_OK) err = export_write_spooled(&spool, o);
    ps_row_spool_close(&spool);
    return err;
}
