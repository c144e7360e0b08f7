#include "csv.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data_files.h"
#include "parse_text.h"

static const uint64_t file_max_bytes = (uint64_t)1 << 36;

/* The read position in a text. */
typedef struct cursor {
    const char *path;
    char *at, *end;
    int64_t line, column; // of the next field, from 1
    char separator;
    const ps_wanted *wanted;
} cursor;

static ps_err bad_field(const cursor *c, const char *text, const char *what)
{
    return ps_err_set(PS_ERR_FORMAT,
                      "%s:%" PRId64 ": column %" PRId64 ": \"%.40s\" is not %s", c->path,
                      c->line, c->column, text, what);
}

/* The next line, its end replaced by '\0'; NULL at the end of the text. Skips empty ones.
 */
static char *next_line(cursor *c)
{
    while (c->at < c->end) {
        char *line = c->at, *end = memchr(line, '\n', (size_t)(c->end - line));
        c->at = end ? end + 1 : c->end;
        c->line++;
        c->column = 1;
        if (!end) end = c->end; // the text has room for a '\0'
        if (end > line && end[-1] == '\r') end--;
        *end = '\0';
        if (line[strspn(line, " \t")] != '\0') return line;
    }
    return NULL;
}

/* Cuts the next field off a line; NULL after the last. */
static char *next_field(const cursor *c, char **rest)
{
    char *field = *rest;
    if (!field) return NULL;
    char *end = strchr(field, c->separator);
    *rest = end ? end + 1 : NULL;
    if (!end) end = field + strlen(field);
    while (*field == ' ')
        field++;
    while (end > field && end[-1] == ' ')
        end--;
    if (end - field >= 2 && *field == '"' && end[-1] == '"') field++, end--;
    *end = '\0';
    return field;
}

static bool is_number(const char *field, double *value)
{
    return !strchr(field, '/') && ps_parse_double(field, value);
}

/* Whether a field was meant as a number: also one that is too large, or NaN. */
static bool is_like_number(const char *field)
{
    char *end;
    (void)strtod(field, &end);
    return end > field && *end == '\0';
}

static char separator_of(const char *line)
{
    const size_t at = strcspn(line, ",;\t");
    return line[at] ? line[at] : ',';
}

static int64_t count_fields(const cursor *c, const char *line)
{
    int64_t n = 1;
    for (; *line; line++)
        n += *line == c->separator;
    return n;
}

static int64_t count_lines(const cursor *c)
{
    int64_t n = 1;
    for (const char *p = c->at; (p = memchr(p, '\n', (size_t)(c->end - p))); p++)
        n++;
    return n;
}

/* Whether a line, which is kept, has a field that was not meant as a number. */
static ps_err is_header(const cursor *c, const char *line, bool *out)
{
    char *copy = strdup(line), *rest = copy, *field;
    *out = false;
    if (!copy) return ps_err_set(PS_ERR_NOMEM, "%s: no memory for a line", c->path);
    while ((field = next_field(c, &rest)))
        *out |= !is_like_number(field);
    free(copy);
    return PS_OK;
}

static bool wants_number(const ps_wanted *wanted)
{
    return wanted->numbers && wanted->n == 1;
}

/* The last field of a line. */
static ps_err read_answer(const cursor *c, const char *field, ps_dataset *out)
{
    const ps_wanted *w = c->wanted;
    double value;
    if (wants_number(w)) {
        if (!is_number(field, &value) || !isfinite((float)value))
            return bad_field(c, field, "a number");
        if (w->unit && (value < 0 || value > 1))
            return bad_field(c, field, "from 0 to 1, as bce_with_logits takes it");
        out->targets[out->n++] = (float)value;
        return PS_OK;
    }
    const bool number = is_number(field, &value);
    const bool ignored = number && w->may_be_ignored && value == w->ignore_index;
    if (!ignored && (!number || value < 0 || value > INT32_MAX || value != floor(value)))
        return bad_field(c, field, "a class (a whole number from 0)");
    out->labels[out->n++] = (int32_t)value;
    return PS_OK;
}

static ps_err read_line(cursor *c, char *line, ps_dataset *out)
{
    const int64_t columns = out->dims.d[0];
    float *values = (float *)out->values + out->n * columns;
    char *rest = line, *field;
    double value;
    if (count_fields(c, line) != columns + 1)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s:%" PRId64 ": %" PRId64
                          " fields; the first line has %" PRId64,
                          c->path, c->line, count_fields(c, line), columns + 1);
    for (; c->column <= columns; c->column++) {
        field = next_field(c, &rest);
        if (!is_number(field, &value)) return bad_field(c, field, "a number");
        if (!isfinite((float)value))
            return bad_field(c, field, "within float32, which ends at 3.4e38");
        values[c->column - 1] = (float)value;
    }
    return read_answer(c, next_field(c, &rest), out);
}

static bool grow_answers(const cursor *c, size_t n, ps_dataset *out)
{
    if (wants_number(c->wanted)) {
        void *targets = realloc(out->targets, n * sizeof *out->targets);
        if (targets) out->targets = targets;
        out->n_targets = 1;
        return targets != NULL;
    }
    void *labels = realloc(out->labels, n * sizeof *out->labels);
    if (labels) out->labels = labels;
    return labels != NULL;
}

/* Room for that many more samples of `columns` numbers. */
static ps_err grow(const cursor *c, int64_t more, int64_t columns, ps_dataset *out)
{
    uint64_t bytes;
    out->dims = (ps_dims){1, {columns}};
    out->is_float = true;
    PS_TRY(ps_dataset_bytes(c->path, out->n + more, &out->dims, true, &bytes));
    void *values = realloc(out->values, bytes);
    if (values) out->values = values;
    if (values && grow_answers(c, (size_t)(out->n + more), out)) return PS_OK;
    return ps_err_set(PS_ERR_NOMEM, "%s: no memory for %" PRId64 " samples", c->path,
                      out->n + more);
}

static ps_err read_lines(cursor *c, ps_dataset *out)
{
    char *line = next_line(c);
    bool header;
    if (!line) return ps_err_set(PS_ERR_FORMAT, "%s: the file is empty", c->path);
    c->separator = separator_of(line);
    const int64_t columns = count_fields(c, line) - 1;
    if (columns < 1)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s:%" PRId64 ": only one column; a line has numbers, then "
                          "a class",
                          c->path, c->line);
    if (out->n > 0 && columns != out->dims.d[0])
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: %" PRId64 " columns; the file before has %" PRId64,
                          c->path, columns + 1, out->dims.d[0] + 1);
    PS_TRY(grow(c, 1 + count_lines(c), columns, out));
    PS_TRY(is_header(c, line, &header));
    for (line = header ? next_line(c) : line; line; line = next_line(c))
        PS_TRY(read_line(c, line, out));
    return PS_OK;
}

ps_err ps_csv_parse(const char *path, char *text, uint64_t bytes, const ps_wanted *wanted,
                    ps_dataset *out)
{
    cursor c = {.path = path, .at = text, .end = text + bytes, .wanted = wanted};
    const char *zero = memchr(text, '\0', bytes);
    if (zero)
        return ps_err_set(PS_ERR_FORMAT, "%s: is not a text file: byte %zu is 0", path,
                          (size_t)(zero - text));
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) c.at += 3; // a mark of UTF-8
    return read_lines(&c, out);
}

static ps_err read_file(const char *path, const ps_wanted *wanted, ps_dataset *out)
{
    ps_source source;
    void *text = NULL;
    uint64_t bytes = 0;
    ps_err err = ps_source_init(&source, path);
    if (err == PS_OK) err = ps_source_read_rest(&source, file_max_bytes, &text, &bytes);
    ps_source_fini(&source);
    if (err != PS_OK) return err;
    char *room = realloc(text, bytes + 1);
    if (room) {
        room[bytes] = '\0';
        err = ps_csv_parse(path, room, bytes, wanted, out);
    } else {
        err = ps_err_set(PS_ERR_NOMEM, "%s: no memory", path);
    }
    free(room ? room : text);
    return err;
}

ps_err ps_csv_read(char *const *paths, int n_paths, const ps_wanted *wanted,
                   ps_dataset *out)
{
    *out = (ps_dataset){0};
    for (int i = 0; i < n_paths; i++) {
        ps_err err = read_file(paths[i], wanted, out);
        if (err == PS_OK) continue;
        ps_dataset_fini(out);
        return err;
    }
    if (out->n > 0) return PS_OK;
    ps_dataset_fini(out);
    return ps_err_set(PS_ERR_FORMAT, "%s: holds no sample", n_paths ? paths[0] : "csv");
}
