#include "csv.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "data_files.h"
#include "parse_text.h"

static const uint64_t file_max_bytes = (uint64_t)1 << 36;

/* The read position in a text, and the line that was cut last. */
typedef struct cursor {
    const char *path;
    char *at;                // the text ends in '\0'
    int64_t line, next_line; // from 1: of the fields, of `at`
    char separator;          // '\0': not known yet
    char **fields;           // (n_fields) of the line; room is owned
    int64_t n_fields, room;
    const ps_wanted *wanted;
} cursor;

static ps_err bad_field(const cursor *c, int64_t index, const char *what)
{
    return ps_err_set(PS_ERR_FORMAT,
                      "%s:%" PRId64 ": column %" PRId64 ": \"%.40s\" is not %s", c->path,
                      c->line, index + 1, c->fields[index], what);
}

/* --- lines and fields -------------------------------------------------------------- */

/* The first of the three in the line, outside of a quoted first field. */
static char separator_of(const char *at)
{
    at += strspn(at, " ");
    if (*at == '"')
        for (at++; *at && (*at != '"' || at[1] == '"'); at++)
            at += *at == '"';
    at += strcspn(at, ",;\t\n");
    return *at == ';' || *at == '\t' ? *at : ',';
}

/* Undoes the quotes of a field in place; at: behind the first one. Returns what follows
 * the last one; NULL: there is none. */
static char *csv_unquote(cursor *c, char *at)
{
    char *to = at;
    for (; *at; *to++ = *at++) {
        if (*at == '"' && *++at != '"') {
            *to = '\0';
            return at + strspn(at, " \r");
        }
        c->next_line += *at == '\n';
    }
    return NULL;
}

/* Ends a field without quotes. Returns what follows it, whose character is then *found.
 */
static char *csv_trim(const cursor *c, char *field, char *found)
{
    char *stop = field, *end;
    while (*stop && *stop != c->separator && *stop != '\n')
        stop++;
    *found = *stop;
    for (end = stop; end > field && (end[-1] == ' ' || end[-1] == '\r');)
        end--;
    *end = '\0';
    return stop;
}

static ps_err add_field(cursor *c, char *field)
{
    if (c->n_fields == c->room) {
        const int64_t room = c->room > 0 ? 2 * c->room : 16;
        char **fields = realloc(c->fields, (size_t)room * sizeof *fields);
        if (!fields) return ps_err_set(PS_ERR_NOMEM, "%s: no memory for a line", c->path);
        c->fields = fields;
        c->room = room;
    }
    c->fields[c->n_fields++] = field;
    return PS_OK;
}

/* *found: the character behind the field, which ends the line unless it separates. */
static ps_err cut_field(cursor *c, char *found)
{
    char *field = c->at + strspn(c->at, " ");
    const bool quoted = *field == '"';
    PS_TRY(add_field(c, field + quoted));
    char *stop = quoted ? csv_unquote(c, field + 1) : csv_trim(c, field, found);
    if (quoted && stop) *found = *stop;
    if (!stop || (*found && *found != c->separator && *found != '\n'))
        return bad_field(c, c->n_fields - 1,
                         stop ? "all of the field, whose quotes end here: a double quote "
                                "within quotes is written twice"
                              : "a whole field: the quotes have no end");
    c->next_line += *found == '\n';
    c->at = *found ? stop + 1 : stop;
    return PS_OK;
}

/* Cuts the next line that is not empty into fields; none at the end of the text. */
static ps_err cut_line(cursor *c)
{
    char found = '\0';
    c->n_fields = 0;
    for (char *end; *(end = c->at + strspn(c->at, " \t\r")) == '\n'; c->next_line++)
        c->at = end + 1;
    if (c->at[strspn(c->at, " \t\r")] == '\0') return PS_OK;
    c->line = c->next_line;
    if (!c->separator) c->separator = separator_of(c->at);
    do
        PS_TRY(cut_field(c, &found));
    while (found == c->separator);
    return PS_OK;
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

static bool has_decimal_comma(const char *field)
{
    char text[64];
    snprintf(text, sizeof text, "%s", field);
    char *comma = strchr(text, ',');
    if (comma) *comma = '.';
    return comma && is_like_number(text);
}

static bool is_missing(const char *field)
{
    static const char *const words[] = {"",     "nan",  "na", "n/a", "<na>",
                                        "null", "none", "?",  "-"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(field, words[i]) == 0) return true;
    return false;
}

static bool wants_number(const ps_wanted *wanted)
{
    return wanted->numbers && wanted->n == 1;
}

/* what: that it is a number, or which one. */
static ps_err bad_number(const cursor *c, int64_t index, const char *what)
{
    const bool class =
        index == c->n_fields - 1 && !c->wanted->nothing && !wants_number(c->wanted);
    const char *field = c->fields[index];
    const char *mend = is_missing(field)          ? "fill it, or leave out the line"
                       : has_decimal_comma(field) ? "write a point for the comma"
                       : is_like_number(field)    ? "write a finite number"
                       : class ? "number the classes, alike in all files"
                               : "leave the column out, or make numbers of it "
                                 "(pandas.get_dummies)";
    char text[192];
    snprintf(text, sizeof text, "%s: %s", what, mend);
    return bad_field(c, index, text);
}

static int64_t count_lines(const cursor *c)
{
    int64_t n = 1;
    for (const char *p = c->at; (p = strchr(p, '\n')); p++)
        n++;
    return n;
}

/* --- samples ----------------------------------------------------------------------- */

/* Fields of a line that are not the sample's. */
static int64_t csv_n_answers(const cursor *c)
{
    return c->wanted->nothing ? 0 : 1;
}

/* The last field of a line. */
static ps_err read_answer(const cursor *c, ps_dataset *out)
{
    const ps_wanted *w = c->wanted;
    const int64_t last = c->n_fields - 1;
    double value = 0;
    if (w->nothing) {
        out->labels[out->n++] = 0;
        return PS_OK;
    }
    const bool number = is_number(c->fields[last], &value);
    if (wants_number(w)) {
        if (!number || !isfinite((float)value)) return bad_number(c, last, "a number");
        if (w->unit && (value < 0 || value > 1))
            return bad_field(c, last, "from 0 to 1, as bce_with_logits takes it");
        out->targets[out->n++] = (float)value;
        return PS_OK;
    }
    const bool ignored = number && w->may_be_ignored && value == w->ignore_index;
    if (!ignored && !number)
        return bad_number(c, last, "a class (a whole number from 0)");
    if (!ignored && (value < 0 || value > INT32_MAX || value != floor(value)))
        return bad_field(c, last,
                         value == floor(value)
                             ? "a class (a whole number from 0)"
                             : "a class (a whole number from 0): for numbers, set "
                               "model.loss to mse");
    out->labels[out->n++] = (int32_t)value;
    return PS_OK;
}

static ps_err read_sample(const cursor *c, ps_dataset *out)
{
    const int64_t columns = out->dims.d[0];
    float *values = (float *)out->values + out->n * columns;
    double value;
    if (c->n_fields != columns + csv_n_answers(c))
        return ps_err_set(PS_ERR_FORMAT,
                          "%s:%" PRId64 ": %" PRId64
                          " fields; the first line has %" PRId64,
                          c->path, c->line, c->n_fields, columns + csv_n_answers(c));
    for (int64_t i = 0; i < columns; i++) {
        if (!is_number(c->fields[i], &value)) return bad_number(c, i, "a number");
        if (!isfinite((float)value))
            return bad_field(c, i, "within float32, which ends at 3.4e38");
        values[i] = (float)value;
    }
    return read_answer(c, out);
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
static ps_err csv_grow(const cursor *c, int64_t more, int64_t columns, ps_dataset *out)
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

/* --- the first line ---------------------------------------------------------------- */

/* out->columns: of the first file that has names. */
static ps_err take_names(const cursor *c, ps_dataset *out)
{
    char where[PATH_MAX];
    const ps_class_names own = {.n = c->n_fields, .names = c->fields};
    snprintf(where, sizeof where, "%s:%" PRId64, c->path, c->line);
    if (out->columns.n > 0)
        return ps_dataset_columns_check(&own, where, &out->columns, "a file before it");
    return ps_class_names_copy(&own, &out->columns);
}

static ps_err note_header(const cursor *c, ps_dataset *out)
{
    PS_TRY(take_names(c, out));
    char names[160] = "";
    for (int64_t i = 0, at = 0; i < c->n_fields && at < (int64_t)sizeof names; i++)
        at += snprintf(names + at, sizeof names - (size_t)at, "%s%s", i > 0 ? " | " : "",
                       c->fields[i]);
    return ps_dataset_note(&out->notes, "%s:%" PRId64 ": names of columns: %s", c->path,
                           c->line, names);
}

/* Whether the line is 0, 1, 2, ...: what pandas writes where a table has no names. */
static bool counts_columns(const cursor *c)
{
    double value;
    for (int64_t i = 0; i < c->n_fields; i++)
        if (!is_number(c->fields[i], &value) || value != (double)i) return false;
    return true;
}

/* Names, of which none is a number, or a sample. */
static ps_err read_first_line(const cursor *c, ps_dataset *out)
{
    int64_t numbers = 0, other = -1;
    for (int64_t i = 0; i < c->n_fields; i++)
        if (is_like_number(c->fields[i]))
            numbers++;
        else if (other < 0)
            other = i;
    if (numbers == 0) return note_header(c, out);
    if (other >= 0)
        return bad_number(c, other,
                          "a number, as others of the first line are (a line of names "
                          "has none)");
    if (counts_columns(c))
        PS_TRY(ps_dataset_note(&out->doubts,
                               "%s:%" PRId64 ": 0, 1, 2, ... is taken as a sample; if it "
                               "is what pandas wrote as names, save with header=False",
                               c->path, c->line));
    return read_sample(c, out);
}

static ps_err read_lines(cursor *c, ps_dataset *out)
{
    PS_TRY(cut_line(c));
    const int64_t columns = c->n_fields - csv_n_answers(c);
    if (c->n_fields == 0)
        return ps_err_set(PS_ERR_FORMAT, "%s: the file is empty", c->path);
    if (columns < 1)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s:%" PRId64 ": only one column; a line has numbers, then "
                          "a class",
                          c->path, c->line);
    if (out->n > 0 && columns != out->dims.d[0])
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: %" PRId64 " columns; the file before has %" PRId64,
                          c->path, c->n_fields, out->dims.d[0] + csv_n_answers(c));
    PS_TRY(csv_grow(c, 1 + count_lines(c), columns, out));
    PS_TRY(read_first_line(c, out));
    for (;;) {
        PS_TRY(cut_line(c));
        if (c->n_fields == 0) return PS_OK;
        PS_TRY(read_sample(c, out));
    }
}

ps_err ps_csv_parse(const char *path, char *text, uint64_t bytes, const ps_wanted *wanted,
                    ps_dataset *out)
{
    cursor c = {.path = path, .at = text, .next_line = 1, .wanted = wanted};
    const char *zero = memchr(text, '\0', bytes);
    if (zero)
        return ps_err_set(PS_ERR_FORMAT, "%s: is not a text file: byte %zu is 0", path,
                          (size_t)(zero - text));
    text[bytes] = '\0';
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) c.at += 3; // a mark of UTF-8
    const ps_err err = read_lines(&c, out);
    free(c.fields);
    return err;
}

static ps_err csv_read_file(const char *path, const ps_wanted *wanted, ps_dataset *out)
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
        ps_err err = csv_read_file(paths[i], wanted, out);
        if (err == PS_OK) continue;
        ps_dataset_fini(out);
        return err;
    }
    if (out->n > 0) return PS_OK;
    ps_dataset_fini(out);
    return ps_err_set(PS_ERR_FORMAT, "%s: holds no sample", n_paths ? paths[0] : "csv");
}
