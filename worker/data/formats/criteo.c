#include "criteo.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "csv_lines.h"
#include "file_at.h"
#include "mem.h"
#include "parse_text.h"
#include "readable.h"

enum {
    HELD = 4096, // samples that go into a file at once; room for the first ones
    VALUES_BYTES = PS_CRITEO_COUNTS * sizeof(float),
    IDS_BYTES = PS_CRITEO_IDS * sizeof(int64_t),
    RECORD_BYTES = VALUES_BYTES + IDS_BYTES
};
static const char TEMPORARY[] = "the temporary file of clicks";

bool ps_criteo_is_id(const char *text)
{
    const size_t n = strlen(text);
    return n > 0 && n <= 16 && strspn(text, "0123456789abcdefABCDEF") == n &&
           strtoull(text, NULL, 16) <= INT64_MAX;
}

/* Samples on their way into a dataset. With a file, values and ids are those that are not
 * in it yet. */
typedef struct criteo_reader {
    ps_dataset *out;
    int64_t room;              // of labels; without a file of values and ids, too
    bool fresh;                // the first line says whether there are labels
    int fd;                    // -1: all stays in memory
    int64_t n_held;            // samples whose values and ids are in memory
    char *records;             // (HELD) for the file
    int64_t missing, negative; // counts
    int64_t like_missing;      // ids
} criteo_reader;

static ps_err criteo_count(const ps_csv_lines *l, int column, criteo_reader *r,
                           float *out)
{
    int64_t count = 0;
    const char *text = l->fields[column];
    if (text[0] && !ps_parse_int(text, &count))
        return ps_csv_bad_field(l, column, "a count");
    r->missing += !text[0];
    r->negative += count < 0;
    *out = (float)log1p(count > 0 ? (double)count : 0);
    return PS_OK;
}

static ps_err criteo_id(const ps_csv_lines *l, int column, criteo_reader *r, int64_t *out)
{
    const char *text = l->fields[column];
    *out = PS_CRITEO_MISSING;
    if (!text[0]) return PS_OK;
    if (!ps_criteo_is_id(text))
        return ps_csv_bad_field(l, column,
                                "an id: hexadecimal digits of a number below 2^63");
    *out = (int64_t)strtoull(text, NULL, 16);
    r->like_missing += *out == PS_CRITEO_MISSING;
    return PS_OK;
}

/* first: the column of the first count. */
static ps_err criteo_take(const ps_csv_lines *l, int first, criteo_reader *r)
{
    ps_dataset *out = r->out;
    const int64_t i = r->n_held;
    const char *label = l->fields[0];
    if (l->n_fields != first + PS_CRITEO_COUNTS + PS_CRITEO_IDS)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s:%" PRId64 ": %" PRId64 " columns; Criteo's lines have %s13 "
                          "counts and 26 ids between tabs",
                          l->path, l->line, l->n_fields, first ? "a label, " : "");
    if (first && ((label[0] != '0' && label[0] != '1') || label[1]))
        return ps_csv_bad_field(l, 0, "a label, 0 or 1");
    out->labels[out->n] = first && label[0] == '1';
    for (int k = 0; k < PS_CRITEO_COUNTS; k++)
        PS_TRY(criteo_count(l, first + k, r,
                            (float *)out->values + i * PS_CRITEO_COUNTS + k));
    for (int k = 0; k < PS_CRITEO_IDS; k++)
        PS_TRY(criteo_id(l, first + PS_CRITEO_COUNTS + k, r,
                         out->ids + i * PS_CRITEO_IDS + k));
    out->n++;
    r->n_held++;
    return PS_OK;
}

/* Room for twice as many samples, or for the first ones. */
static ps_err criteo_grow(criteo_reader *r)
{
    ps_dataset *out = r->out;
    const size_t n = r->room > 0 ? 2 * (size_t)r->room : HELD;
    struct {
        void **at;
        size_t bytes;
    } arrays[] = {{(void **)&out->labels, sizeof *out->labels},
                  {&out->values, PS_CRITEO_COUNTS * sizeof(float)},
                  {(void **)&out->ids, PS_CRITEO_IDS * sizeof *out->ids}};
    for (int i = 0; i < (r->fd >= 0 && r->room > 0 ? 1 : 3); i++) {
        void *more = realloc(*arrays[i].at, n * arrays[i].bytes);
        if (!more)
            return ps_err_set(PS_ERR_NOMEM,
                              "no memory for %zu samples of %zu bytes; data.stream=true "
                              "keeps them in a file",
                              n, arrays[i].bytes);
        *arrays[i].at = more;
    }
    r->room = (int64_t)n;
    return PS_OK;
}

/* What is held goes into the file. */
static ps_err criteo_write(criteo_reader *r)
{
    const float *values = r->out->values;
    for (int64_t i = 0; i < r->n_held; i++) {
        char *record = r->records + i * RECORD_BYTES;
        memcpy(record, values + i * PS_CRITEO_COUNTS, VALUES_BYTES);
        memcpy(record + VALUES_BYTES, r->out->ids + i * PS_CRITEO_IDS, IDS_BYTES);
    }
    const uint64_t written = (uint64_t)(r->out->n - r->n_held);
    PS_TRY(ps_file_write_at(r->fd, TEMPORARY, written * RECORD_BYTES, r->records,
                            (uint64_t)r->n_held * RECORD_BYTES));
    r->n_held = 0;
    return PS_OK;
}

/* All lines; fini of the lines is the caller's. */
static ps_err criteo_take_all(ps_csv_lines *l, criteo_reader *r)
{
    ps_dataset *out = r->out;
    l->separator = '\t';
    for (;;) {
        PS_TRY(ps_csv_lines_next(l));
        if (l->n_fields == 0) return PS_OK;
        if (r->fresh && out->n == 0)
            out->answered = l->n_fields != PS_CRITEO_COUNTS + PS_CRITEO_IDS;
        if (r->fd >= 0 && r->n_held == HELD) PS_TRY(criteo_write(r));
        if (out->n == r->room) PS_TRY(criteo_grow(r));
        PS_TRY(criteo_take(l, out->answered ? 1 : 0, r));
    }
}

/* The samples are in the file, which becomes the dataset's. */
static ps_err criteo_use_file(criteo_reader *r)
{
    ps_dataset *out = r->out;
    PS_TRY(criteo_write(r));
    free(out->values);
    free(out->ids);
    out->values = NULL;
    out->ids = NULL;
    const int fd = r->fd;
    r->fd = -1;
    return ps_sample_file_of(fd, TEMPORARY, PS_CRITEO_COUNTS, IDS_BYTES, &out->stream);
}

static ps_err criteo_note(const criteo_reader *r)
{
    if (r->like_missing > 0)
        PS_TRY(ps_dataset_note(&r->out->doubts,
                               "ids that are 100000000, as which missing ones count: %s: "
                               "give them another number",
                               PS_COUNTED(r->like_missing)));
    if (r->missing == 0 && r->negative == 0) return PS_OK;
    return ps_dataset_note(&r->out->notes,
                           "counts that are taken as 0: %s missing, %s below 0, of %s",
                           PS_COUNTED(r->missing), PS_COUNTED(r->negative),
                           PS_COUNTED(r->out->n * PS_CRITEO_COUNTS));
}

static ps_err criteo_end(ps_err err, const char *name, criteo_reader *r)
{
    if (err == PS_OK && r->out->n == 0)
        err = ps_err_set(PS_ERR_FORMAT, "%s: no samples", name);
    if (err == PS_OK) err = criteo_note(r);
    if (err == PS_OK && r->fd >= 0) err = criteo_use_file(r);
    if (r->fd >= 0) close(r->fd);
    free(r->records);
    if (err != PS_OK) ps_dataset_fini(r->out);
    return err;
}

static const ps_dataset criteo_empty = {.dims = {1, {PS_CRITEO_COUNTS}},
                                        .is_float = true,
                                        .n_ids = PS_CRITEO_IDS,
                                        .answered = true};

static ps_err criteo_read_file(const char *path, criteo_reader *r)
{
    ps_csv_lines lines;
    ps_err err = ps_csv_lines_open(&lines, path);
    if (err == PS_OK) err = criteo_take_all(&lines, r);
    ps_csv_lines_fini(&lines);
    return err;
}

static ps_err criteo_read_files(char *const *paths, int n_paths, criteo_reader *r)
{
    ps_err err = PS_OK;
    for (int i = 0; i < n_paths && err == PS_OK; i++)
        err = criteo_read_file(paths[i], r);
    return criteo_end(err, paths[0], r);
}

ps_err ps_criteo_read(char *const *paths, int n_paths, ps_dataset *out)
{
    criteo_reader r = {.out = out, .fd = -1};
    *out = criteo_empty;
    return criteo_read_files(paths, n_paths, &r);
}

/* Beside the first file. */
static ps_err criteo_open_temporary(const char *path, criteo_reader *r)
{
    char *folder;
    PS_TRY(ps_mem_zalloc(&r->records, HELD, RECORD_BYTES, "samples"));
    PS_TRY(ps_data_path(".", path, &folder));
    *strrchr(folder, '/') = '\0';
    const ps_err err = ps_data_temporary(folder[0] ? folder : "/", &r->fd);
    free(folder);
    return err;
}

static ps_err criteo_open_files(char *const *paths, int n_paths, criteo_reader *r)
{
    *r->out = criteo_empty;
    const ps_err err = criteo_open_temporary(paths[0], r);
    return err == PS_OK ? criteo_read_files(paths, n_paths, r)
                        : criteo_end(err, paths[0], r);
}

ps_err ps_criteo_open(char *const *paths, int n_paths, const ps_wanted *wanted,
                      ps_dataset *out)
{
    criteo_reader r = {.out = out, .fd = -1};
    (void)wanted; // labels are 0 and 1
    return criteo_open_files(paths, n_paths, &r);
}

ps_err ps_criteo_open_new(const char *path, ps_dataset *out)
{
    criteo_reader r = {.out = out, .fd = -1, .fresh = true};
    char *const paths[] = {(char *)path};
    return criteo_open_files(paths, 1, &r);
}

ps_err ps_criteo_parse_new(const char *name, char *text, uint64_t bytes, ps_dataset *out)
{
    criteo_reader r = {.out = out, .fd = -1, .fresh = true};
    ps_csv_lines lines;
    *out = criteo_empty;
    ps_err err = ps_csv_lines_of_text(&lines, name, text, bytes);
    if (err == PS_OK) err = criteo_take_all(&lines, &r);
    ps_csv_lines_fini(&lines);
    return criteo_end(err, name, &r);
}
