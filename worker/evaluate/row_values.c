#include "row_values.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "row_init.h"
#include "safetensors.h"

enum { NAME_BYTES = PS_ROW_NAME_BYTES + 8 };

void ps_row_values_path(const char *weights, char path[PATH_MAX])
{
    const char *dot = strstr(weights, ".safetensors");
    const size_t n = dot ? (size_t)(dot - weights) : strlen(weights);
    snprintf(path, PATH_MAX, "%.*s.rows.safetensors", (int)n, weights);
}

static ps_err row_values_init(ps_row_values *v, const ps_model_spec *spec)
{
    *v = (ps_row_values){.specs = spec->rows, .n = spec->n_rows};
    return ps_mem_zalloc(&v->tables, (size_t)v->n, sizeof *v->tables, "rows");
}

void ps_row_values_fini(ps_row_values *v)
{
    for (int t = 0; v->tables && t < v->n; t++) {
        free(v->tables[t].ids);
        free(v->tables[t].weights);
    }
    free(v->tables);
    *v = (ps_row_values){0};
}

static ps_err row_values_room(ps_row_value_table *t, uint64_t n, uint32_t dim)
{
    int64_t *ids = realloc(t->ids, (n + 1) * sizeof *ids);
    if (ids) t->ids = ids;
    float *weights = realloc(t->weights, (n * dim + 1) * sizeof *weights);
    if (weights) t->weights = weights;
    return ids && weights
               ? PS_OK
               : ps_err_set(PS_ERR_NOMEM, "no memory for %" PRIu64 " rows of %u", n, dim);
}

/* --- from the servers --------------------------------------------------------------- */

typedef struct row_at {
    int64_t id;
    uint64_t at;
} row_at;

static int row_values_compare(const void *a, const void *b)
{
    const int64_t x = ((const row_at *)a)->id, y = ((const row_at *)b)->id;
    return (x > y) - (x < y);
}

static ps_err row_values_sort(ps_row_value_table *t, uint32_t dim)
{
    ps_row_value_table sorted = {.n = t->n};
    row_at *order;
    PS_TRY(ps_mem_zalloc(&order, t->n + 1, sizeof *order, "rows"));
    ps_err err = row_values_room(&sorted, t->n, dim);
    for (uint64_t i = 0; i < t->n; i++)
        order[i] = (row_at){t->ids[i], i};
    qsort(order, t->n, sizeof *order, row_values_compare);
    for (uint64_t i = 0; i < t->n && err == PS_OK; i++) {
        sorted.ids[i] = order[i].id;
        memcpy(sorted.weights + i * dim, t->weights + order[i].at * dim,
               dim * sizeof *sorted.weights);
    }
    free(order);
    free(t->ids);
    free(t->weights);
    *t = sorted;
    return err;
}

static ps_err row_values_take(ps_row_value_table *t, ps_row_client *client, int table,
                              uint32_t dim)
{
    const uint32_t width = ps_row_client_width(client, table);
    ps_row_page page = {0};
    do {
        PS_TRY(ps_row_client_save(client, table, &page));
        PS_TRY(row_values_room(t, t->n + page.n, dim));
        for (uint64_t i = 0; i < page.n; i++, t->n++) {
            t->ids[t->n] = page.ids[i];
            memcpy(t->weights + t->n * dim, page.values + i * width,
                   dim * sizeof *t->weights);
        }
    } while (page.next);
    return row_values_sort(t, dim);
}

static ps_err row_values_write(const char *path, const ps_row_values *v)
{
    const int n = 2 * v->n;
    ps_st_tensor *list;
    char(*names)[NAME_BYTES];
    PS_TRY(ps_mem_zalloc(&list, (size_t)n, sizeof *list, path));
    ps_err err = ps_mem_zalloc(&names, (size_t)n, sizeof *names, path);
    for (int t = 0; t < v->n && err == PS_OK; t++) {
        const ps_row_value_table *from = &v->tables[t];
        const int64_t rows = (int64_t)from->n, dim = v->specs[t].dim;
        snprintf(names[2 * t], NAME_BYTES, "%s.ids", v->specs[t].name);
        snprintf(names[2 * t + 1], NAME_BYTES, "%s.weight", v->specs[t].name);
        list[2 * t] = (ps_st_tensor){.name = names[2 * t],
                                     .dtype = "I64",
                                     .dims = {1, {rows}},
                                     .data = from->ids,
                                     .bytes = from->n * sizeof *from->ids};
        list[2 * t + 1] =
            (ps_st_tensor){.name = names[2 * t + 1],
                           .dtype = "F32",
                           .dims = {2, {rows, dim}},
                           .data = from->weights,
                           .bytes = from->n * (uint64_t)dim * sizeof *from->weights};
    }
    if (err == PS_OK) err = ps_st_save(path, list, n, NULL, 0);
    free(names);
    free(list);
    return err;
}

ps_err ps_row_values_save(const char *path, ps_row_client *client,
                          const ps_model_spec *spec)
{
    ps_row_values v;
    ps_err err = row_values_init(&v, spec);
    for (int t = 0; t < v.n && err == PS_OK; t++)
        err = row_values_take(&v.tables[t], client, t, v.specs[t].dim);
    if (err == PS_OK) err = row_values_write(path, &v);
    ps_row_values_fini(&v);
    return err;
}

/* --- from a file -------------------------------------------------------------------- */

static ps_err row_values_find(const char *path, const ps_st_file *file,
                              const ps_row_spec *spec, const char *what, ps_dims dims,
                              const ps_st_tensor **out)
{
    char name[NAME_BYTES], has[PS_DIMS_TEXT], wants[PS_DIMS_TEXT];
    snprintf(name, sizeof name, "%s.%s", spec->name, what);
    *out = ps_st_find(file, name);
    if (!*out) return ps_err_set(PS_ERR_FORMAT, "%s: has no tensor %s", path, name);
    const bool same =
        dims.d[0] < 0 ? (*out)->dims.n == 1 : ps_dims_equal(&(*out)->dims, &dims);
    if (same && strcmp((*out)->dtype, dims.n == 1 ? "I64" : "F32") == 0) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT, "%s: %s is %s %s; the model has %s %s", path, name,
                      (*out)->dtype, ps_dims_text(&(*out)->dims, has),
                      dims.n == 1 ? "I64" : "F32", ps_dims_text(&dims, wants));
}

static ps_err row_values_of_file(const char *path, const ps_st_file *file,
                                 const ps_row_spec *spec, ps_row_value_table *out)
{
    const ps_st_tensor *ids, *weights;
    PS_TRY(row_values_find(path, file, spec, "ids", (ps_dims){1, {-1}}, &ids));
    PS_TRY(row_values_find(path, file, spec, "weight",
                           (ps_dims){2, {ids->dims.d[0], spec->dim}}, &weights));
    out->n = (uint64_t)ids->dims.d[0];
    PS_TRY(row_values_room(out, out->n, spec->dim));
    memcpy(out->ids, ids->data, ids->bytes);
    memcpy(out->weights, weights->data, weights->bytes);
    for (uint64_t i = 0; i < out->n; i++)
        if (out->ids[i] < 0 || (i > 0 && out->ids[i] <= out->ids[i - 1]))
            return ps_err_set(PS_ERR_FORMAT,
                              "%s: %s.ids: id %" PRId64 " at place %" PRIu64
                              " does not rise from 0",
                              path, spec->name, out->ids[i], i);
    return PS_OK;
}

ps_err ps_row_values_load(ps_row_values *v, const char *path, const ps_model_spec *spec)
{
    ps_st_file file;
    PS_TRY(row_values_init(v, spec));
    PS_TRY(ps_st_load(path, &file));
    ps_err err = PS_OK;
    for (int t = 0; t < v->n && err == PS_OK; t++)
        err = row_values_of_file(path, &file, &v->specs[t], &v->tables[t]);
    ps_st_fini(&file);
    return err;
}

ps_err ps_row_values_put(const ps_row_values *v, ps_row_client *client)
{
    for (int t = 0; t < v->n; t++)
        PS_TRY(ps_row_client_load(client, t, v->tables[t].ids, v->tables[t].n,
                                  v->tables[t].weights, false, 0));
    return PS_OK;
}

static const float *row_values_of(const ps_row_value_table *t, uint32_t dim, int64_t id)
{
    uint64_t first = 0, end = t->n;
    while (first < end) {
        const uint64_t middle = first + (end - first) / 2;
        if (t->ids[middle] == id) return t->weights + middle * dim;
        if (t->ids[middle] < id)
            first = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

void ps_row_values_read(const ps_row_values *v, int table, uint64_t n, const int64_t *ids,
                        float *out)
{
    const uint32_t dim = v->specs[table].dim;
    for (uint64_t i = 0; i < n; i++, out += dim) {
        const float *row = row_values_of(&v->tables[table], dim, ids[i]);
        if (row)
            memcpy(out, row, dim * sizeof *out);
        else
            ps_row_init_fill(&v->specs[table], (uint64_t)ids[i], out);
    }
}
