#include "row_manifest.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

ps_err ps_row_manifest_init(ps_row_manifest *m, const ps_row_spec *specs, uint32_t n)
{
    *m = (ps_row_manifest){.n_tables = n};
    PS_TRY(PS_NEW(&m->tables, n, "a manifest of rows"));
    for (uint32_t t = 0; t < n; t++)
        memcpy(m->tables[t].name, specs[t].name, sizeof m->tables[t].name);
    return PS_OK;
}

void ps_row_manifest_fini(ps_row_manifest *m)
{
    free(m->tables);
    free(m->files);
    *m = (ps_row_manifest){0};
}

ps_err ps_row_manifest_add(ps_row_manifest *m, const ps_row_manifest_file *file)
{
    PS_TRY(ps_mem_room(&m->files, m->n_files, &m->room, sizeof *m->files,
                       "a manifest of rows"));
    m->files[m->n_files++] = *file;
    return PS_OK;
}

/* ---- writing ---- */

static json_t *row_manifest_tables(const ps_row_manifest *m)
{
    json_t *list = json_array();
    for (uint32_t t = 0; t < m->n_tables; t++)
        json_array_append_new(list, json_pack("{s:s, s:I}", "name", m->tables[t].name,
                                              "steps", (json_int_t)m->tables[t].steps));
    return list;
}

static json_t *row_manifest_files(const ps_row_manifest *m)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < m->n_files; i++) {
        const ps_row_manifest_file *f = &m->files[i];
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:b, s:I, s:I}", "name", f->name, "table",
                            (json_int_t)f->table, "changes", f->changes, "bytes",
                            (json_int_t)f->bytes, "crc32", (json_int_t)f->crc));
    }
    return list;
}

ps_err ps_row_manifest_write(const ps_row_manifest *m, char **text)
{
    json_t *root = json_pack("{s:i, s:I, s:I, s:o, s:o}", "rows", 1, "point",
                             (json_int_t)m->point, "step", (json_int_t)m->step, "tables",
                             row_manifest_tables(m), "files", row_manifest_files(m));
    *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return *text ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for a manifest of rows");
}

/* ---- reading ---- */

static ps_err row_manifest_bad(const char *what)
{
    return ps_err_set(PS_ERR_FORMAT, "the manifest of rows is damaged: %s", what);
}

/* A whole number of a map, at most `most`. */
static bool row_manifest_number(const json_t *map, const char *key, uint64_t most,
                                uint64_t *out)
{
    const json_t *value = json_object_get(map, key);
    const json_int_t n = json_integer_value(value);
    *out = (uint64_t)n;
    return json_is_integer(value) && n >= 0 && (uint64_t)n <= most;
}

static bool row_manifest_name(const json_t *map, size_t room, char *out)
{
    const char *text = json_string_value(json_object_get(map, "name"));
    if (!text || strlen(text) >= room) return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static ps_err row_manifest_read_tables(const json_t *list, ps_row_manifest *m)
{
    const size_t n = json_array_size(list);
    if (n < 1 || n > PS_ROW_TABLES_MAX) return row_manifest_bad("its tables");
    PS_TRY(PS_NEW(&m->tables, n, "a manifest of rows"));
    for (m->n_tables = 0; m->n_tables < n; m->n_tables++) {
        struct ps_row_manifest_table *t = &m->tables[m->n_tables];
        const json_t *map = json_array_get(list, m->n_tables);
        if (!row_manifest_name(map, sizeof t->name, t->name) ||
            !row_manifest_number(map, "steps", INT64_MAX, &t->steps))
            return row_manifest_bad("a table");
    }
    return PS_OK;
}

static ps_err row_manifest_read_files(const json_t *list, ps_row_manifest *m)
{
    const size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        const json_t *map = json_array_get(list, i);
        ps_row_manifest_file f = {0};
        uint64_t table, crc;
        if (!row_manifest_name(map, sizeof f.name, f.name) || strchr(f.name, '/') ||
            !row_manifest_number(map, "table", m->n_tables - 1, &table) ||
            !row_manifest_number(map, "bytes", INT64_MAX, &f.bytes) ||
            !row_manifest_number(map, "crc32", UINT32_MAX, &crc) ||
            !json_is_boolean(json_object_get(map, "changes")))
            return row_manifest_bad("a file");
        f.table = (uint32_t)table;
        f.crc = (uint32_t)crc;
        f.changes = json_is_true(json_object_get(map, "changes"));
        PS_TRY(ps_row_manifest_add(m, &f));
    }
    return PS_OK;
}

ps_err ps_row_manifest_read(const char *text, uint64_t bytes, ps_row_manifest *out)
{
    uint64_t version;
    *out = (ps_row_manifest){0};
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    ps_err err = PS_OK;
    if (!row_manifest_number(root, "rows", 1, &version) || version != 1)
        err = row_manifest_bad("its version is another one");
    else if (!row_manifest_number(root, "point", INT64_MAX, &out->point) ||
             out->point == 0 ||
             !row_manifest_number(root, "step", UINT32_MAX, &out->step))
        err = row_manifest_bad("its point");
    if (err == PS_OK)
        err = row_manifest_read_tables(json_object_get(root, "tables"), out);
    if (err == PS_OK) err = row_manifest_read_files(json_object_get(root, "files"), out);
    json_decref(root);
    if (err != PS_OK) ps_row_manifest_fini(out);
    return err;
}

ps_err ps_row_manifest_check(const ps_row_manifest *m, const ps_row_spec *specs,
                             uint32_t n)
{
    for (uint32_t t = 0; t < m->n_tables && t < n; t++)
        if (strcmp(m->tables[t].name, specs[t].name) != 0)
            return ps_err_set(PS_ERR_SHAPE,
                              "the rows that were saved are of other tables: table %u is "
                              "%s there, and %s now",
                              t, m->tables[t].name, specs[t].name);
    if (m->n_tables == n) return PS_OK;
    return ps_err_set(PS_ERR_SHAPE,
                      "the rows that were saved are of %u tables; there are %u now",
                      m->n_tables, n);
}
