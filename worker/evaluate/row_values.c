#include "row_values.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "row_export.h"
#include "row_init.h"
#include "value_json.h"

enum {
    NAME_BYTES = PS_ROW_NAME_BYTES + 8,
    PIECE_BYTES = 1 << 20, // of rows for the servers
    PIECE_IDS = 1 << 19    // that are looked at before their pages are given back
};
static const char STEP[] = "step";

void ps_row_values_path(const char *weights, char path[PATH_MAX])
{
    static const char ending[] = ".safetensors";
    size_t n = strlen(weights);
    if (n >= strlen(ending) && strcmp(weights + n - strlen(ending), ending) == 0)
        n -= strlen(ending);
    snprintf(path, PATH_MAX, "%.*s.rows.safetensors", (int)n, weights);
}

void ps_row_values_fini(ps_row_values *v)
{
    free(v->tables);
    ps_st_fini(&v->file);
    *v = (ps_row_values){0};
}

/* --- from the servers --------------------------------------------------------------- */

/* What pstrain.rows() of the file needs to know, as Embeddings.export() writes it
 * (python/pstrain/serving.py); free(). NULL: no memory. */
static char *row_values_about(const ps_model_spec *spec)
{
    json_t *all = json_object();
    for (int t = 0; t < spec->n_rows; t++) {
        const ps_row_spec *s = &spec->rows[t];
        json_object_set_new(
            all, s->name,
            json_pack("{s:I, s:I, s:n, s:n, s:n, s:s, s:f, s:o}", "number",
                      (json_int_t)s->number, "dim", (json_int_t)s->dim, "mode",
                      "padding_idx", "num_embeddings", "init",
                      ps_word_name(ps_row_init_words, (int)s->init), "scale",
                      s->init_scale, "seed", ps_count_json(s->seed)));
    }
    char *text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return text;
}

ps_err ps_row_values_save(const char *weights, const char *step, ps_row_client *client,
                          const ps_model_spec *spec)
{
    char path[PATH_MAX];
    char *about = row_values_about(spec);
    ps_row_values_path(weights, path);
    if (!about) return ps_err_set(PS_ERR_NOMEM, "%s: no memory", path);
    const char *metadata[] = {"pstrain.tables", about, STEP, step};
    const ps_row_export_options o = {.path = path,
                                     .specs = spec->rows,
                                     .n = spec->n_rows,
                                     .metadata = metadata,
                                     .n_meta = 2};
    const ps_err err = ps_row_export(client, &o);
    free(about);
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

static int64_t row_values_id(const ps_row_value_table *t, uint64_t i)
{
    int64_t id;
    memcpy(&id, (const char *)t->ids + i * sizeof id, sizeof id);
    return id;
}

static ps_err row_values_check_ids(const ps_row_values *v, const char *path, int table)
{
    const ps_row_value_table *t = &v->tables[table];
    int64_t before = -1;
    for (uint64_t i = 0; i < t->n; i++) {
        const int64_t id = row_values_id(t, i);
        if (id <= before)
            return ps_err_set(PS_ERR_FORMAT,
                              "%s: %s.ids: id %" PRId64 " at place %" PRIu64
                              " does not rise from 0",
                              path, v->specs[table].name, id, i);
        before = id;
        if (i % PIECE_IDS == 0) ps_st_forget_pages(&v->file);
    }
    ps_st_forget_pages(&v->file);
    return PS_OK;
}

static ps_err row_values_of_file(const ps_row_values *v, const char *path, int table)
{
    const ps_row_spec *spec = &v->specs[table];
    const ps_st_tensor *ids, *weights;
    PS_TRY(row_values_find(path, &v->file, spec, "ids", (ps_dims){1, {-1}}, &ids));
    PS_TRY(row_values_find(path, &v->file, spec, "weight",
                           (ps_dims){2, {ids->dims.d[0], spec->dim}}, &weights));
    v->tables[table] =
        (ps_row_value_table){(uint64_t)ids->dims.d[0], ids->data, weights->data};
    return row_values_check_ids(v, path, table);
}

/* Where both say theirs. */
static ps_err row_values_check_step(const ps_row_values *v, const char *path,
                                    const char *weights)
{
    const char *own = ps_st_metadata(&v->file, STEP);
    char *step = NULL;
    ps_err err = own ? ps_st_read_metadata(weights, STEP, &step) : PS_OK;
    if (step && strcmp(step, own) != 0)
        err = ps_err_set(PS_ERR_FORMAT,
                         "%s: has the rows of step %.20s, and %s the weights of step "
                         "%.20s: a process was killed between the two: take another "
                         "file of weights",
                         path, own, weights, step);
    free(step);
    return err;
}

ps_err ps_row_values_open(ps_row_values *v, const char *weights,
                          const ps_model_spec *spec)
{
    char path[PATH_MAX];
    ps_row_values_path(weights, path);
    *v = (ps_row_values){.specs = spec->rows, .n = spec->n_rows};
    PS_TRY(PS_NEW(&v->tables, (size_t)v->n, "rows"));
    PS_TRY(ps_st_map(path, &v->file));
    PS_TRY(row_values_check_step(v, path, weights));
    for (int t = 0; t < v->n; t++)
        PS_TRY(row_values_of_file(v, path, t));
    return PS_OK;
}

/* Room for the rows of a message, aligned. */
typedef struct row_piece {
    int64_t *ids;
    float *weights;
    uint64_t most;
} row_piece;

static ps_err row_values_put_table(const ps_row_values *v, ps_row_client *client,
                                   int table, const row_piece *piece)
{
    const ps_row_value_table *t = &v->tables[table];
    const uint64_t row = v->specs[table].dim * sizeof(float);
    uint64_t at = 0;
    do { // also of a table without rows
        const uint64_t n = t->n - at < piece->most ? t->n - at : piece->most;
        memcpy(piece->ids, (const char *)t->ids + at * sizeof *piece->ids,
               n * sizeof *piece->ids);
        memcpy(piece->weights, (const char *)t->weights + at * row, n * row);
        ps_st_forget_pages(&v->file);
        PS_TRY(
            ps_row_client_load(client, table, piece->ids, n, piece->weights, false, 0));
        at += n;
    } while (at < t->n);
    return PS_OK;
}

ps_err ps_row_values_put(const ps_row_values *v, ps_row_client *client)
{
    ps_err err = PS_OK;
    for (int t = 0; t < v->n && err == PS_OK; t++) {
        const uint32_t dim = v->specs[t].dim;
        row_piece piece = {.most = PIECE_BYTES / (dim * sizeof(float)) + 1};
        err = PS_NEW(&piece.ids, piece.most, "rows");
        if (err == PS_OK) err = PS_NEW(&piece.weights, piece.most * dim, "rows");
        if (err == PS_OK) err = row_values_put_table(v, client, t, &piece);
        free(piece.ids);
        free(piece.weights);
    }
    return err;
}

static const void *row_values_of(const ps_row_value_table *t, uint64_t row, int64_t id)
{
    uint64_t first = 0, end = t->n;
    while (first < end) {
        const uint64_t middle = first + (end - first) / 2;
        const int64_t found = row_values_id(t, middle);
        if (found == id) return (const char *)t->weights + middle * row;
        if (found < id)
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
        const void *row = row_values_of(&v->tables[table], dim * sizeof *out, ids[i]);
        if (row)
            memcpy(out, row, dim * sizeof *out);
        else
            ps_row_init_fill(&v->specs[table], (uint64_t)ids[i], out);
    }
}
