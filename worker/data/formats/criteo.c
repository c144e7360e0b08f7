#include "criteo.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "csv_lines.h"
#include "mem.h"
#include "parse_text.h"

enum { FIRST_ROOM = 4096 };

static ps_err criteo_count(const ps_csv_lines *l, int column, float *out)
{
    int64_t count = 0;
    const char *text = l->fields[column];
    if (text[0] && !ps_parse_int(text, &count))
        return ps_csv_bad_field(l, column, "a count");
    *out = (float)log1p(count > 0 ? (double)count : 0);
    return PS_OK;
}

static ps_err criteo_id(const ps_csv_lines *l, int column, int64_t *out)
{
    const char *text = l->fields[column];
    const size_t n = strlen(text);
    *out = PS_CRITEO_MISSING;
    if (n == 0) return PS_OK;
    if (n > 16 || strspn(text, "0123456789abcdefABCDEF") != n ||
        strtoull(text, NULL, 16) > INT64_MAX)
        return ps_csv_bad_field(l, column,
                                "an id: hexadecimal digits of a number below 2^63");
    *out = (int64_t)strtoull(text, NULL, 16);
    return PS_OK;
}

/* first: the column of the first count. */
static ps_err criteo_take(const ps_csv_lines *l, int first, ps_dataset *out)
{
    const int64_t i = out->n;
    const char *label = l->fields[0];
    if (l->n_fields != first + PS_CRITEO_COUNTS + PS_CRITEO_IDS)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s:%" PRId64 ": %" PRId64 " columns; Criteo's lines have %s13 "
                          "counts and 26 ids between tabs",
                          l->path, l->line, l->n_fields, first ? "a label, " : "");
    if (first && ((label[0] != '0' && label[0] != '1') || label[1]))
        return ps_csv_bad_field(l, 0, "a label, 0 or 1");
    out->labels[i] = first && label[0] == '1';
    for (int k = 0; k < PS_CRITEO_COUNTS; k++)
        PS_TRY(
            criteo_count(l, first + k, (float *)out->values + i * PS_CRITEO_COUNTS + k));
    for (int k = 0; k < PS_CRITEO_IDS; k++)
        PS_TRY(
            criteo_id(l, first + PS_CRITEO_COUNTS + k, out->ids + i * PS_CRITEO_IDS + k));
    out->n++;
    return PS_OK;
}

/* Room for twice as many samples, or for the first ones. */
static ps_err criteo_grow(ps_dataset *out, int64_t *room)
{
    const size_t n = *room > 0 ? 2 * (size_t)*room : FIRST_ROOM;
    struct {
        void **at;
        size_t bytes;
    } arrays[] = {{&out->values, PS_CRITEO_COUNTS * sizeof(float)},
                  {(void **)&out->ids, PS_CRITEO_IDS * sizeof *out->ids},
                  {(void **)&out->labels, sizeof *out->labels}};
    for (int i = 0; i < 3; i++) {
        void *more = realloc(*arrays[i].at, n * arrays[i].bytes);
        if (!more)
            return ps_err_set(PS_ERR_NOMEM, "no memory for %zu samples of %zu bytes", n,
                              arrays[i].bytes);
        *arrays[i].at = more;
    }
    *room = (int64_t)n;
    return PS_OK;
}

/* All lines; fini of the lines is the caller's. fresh: the first line says whether there
 * are labels. */
static ps_err criteo_take_all(ps_csv_lines *l, bool fresh, int64_t *room, ps_dataset *out)
{
    l->separator = '\t';
    for (;;) {
        PS_TRY(ps_csv_lines_next(l));
        if (l->n_fields == 0) return PS_OK;
        if (fresh && out->n == 0)
            out->answered = l->n_fields != PS_CRITEO_COUNTS + PS_CRITEO_IDS;
        if (out->n == *room) PS_TRY(criteo_grow(out, room));
        PS_TRY(criteo_take(l, out->answered ? 1 : 0, out));
    }
}

static ps_err criteo_end(ps_err err, const char *name, ps_dataset *out)
{
    if (err == PS_OK && out->n == 0)
        err = ps_err_set(PS_ERR_FORMAT, "%s: no samples", name);
    if (err != PS_OK) ps_dataset_fini(out);
    return err;
}

static const ps_dataset criteo_empty = {.dims = {1, {PS_CRITEO_COUNTS}},
                                        .is_float = true,
                                        .n_ids = PS_CRITEO_IDS,
                                        .answered = true};

static ps_err criteo_read_file(const char *path, bool fresh, int64_t *room,
                               ps_dataset *out)
{
    ps_csv_lines lines;
    ps_err err = ps_csv_lines_open(&lines, path);
    if (err == PS_OK) err = criteo_take_all(&lines, fresh, room, out);
    ps_csv_lines_fini(&lines);
    return err;
}

ps_err ps_criteo_read(char *const *paths, int n_paths, ps_dataset *out)
{
    int64_t room = 0;
    ps_err err = PS_OK;
    *out = criteo_empty;
    for (int i = 0; i < n_paths && err == PS_OK; i++)
        err = criteo_read_file(paths[i], false, &room, out);
    return criteo_end(err, paths[0], out);
}

ps_err ps_criteo_read_new(const char *path, ps_dataset *out)
{
    int64_t room = 0;
    *out = criteo_empty;
    return criteo_end(criteo_read_file(path, true, &room, out), path, out);
}

ps_err ps_criteo_parse_new(const char *name, char *text, uint64_t bytes, ps_dataset *out)
{
    int64_t room = 0;
    ps_csv_lines lines;
    *out = criteo_empty;
    ps_err err = ps_csv_lines_of_text(&lines, name, text, bytes);
    if (err == PS_OK) err = criteo_take_all(&lines, true, &room, out);
    ps_csv_lines_fini(&lines);
    return criteo_end(err, name, out);
}
