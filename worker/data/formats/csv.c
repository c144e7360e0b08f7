#include "csv.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "csv_lines.h"
#include "first_names.h"
#include "mem.h"
#include "nearest_name.h"
#include "parse_text.h"
#include "printable.h"

enum { NAME_BYTES = 256, PLACE_BYTES = PATH_MAX + 24 };
enum { DOUBLE_DIGITS = 15 }; // that each double keeps: DBL_DIG

typedef struct csv_name {
    const char *text; // borrowed
    int64_t place;    // in the first line
} csv_name;

typedef struct csv_reader {
    const ps_csv_options *o;
    ps_csv_lines lines;
    ps_table *table;
    int64_t line_fields; // of the file's first line
    int64_t *fields;     // (table->n_columns) places in a line; owned
    ps_cell *cells;      // (table->n_columns) of a line; owned
    char *unnamed;       // names for fields of the first line that have none; owned
    csv_name *names;     // of the first line, sorted; owned
} csv_reader;

/* "FILE:LINE", or "sample N". Returns out. */
static const char *csv_line_place(const csv_reader *r, char out[PLACE_BYTES])
{
    if (r->o->objects)
        snprintf(out, PLACE_BYTES, "sample %" PRId64, r->table->n);
    else
        snprintf(out, PLACE_BYTES, "%s:%" PRId64, r->lines.path, r->lines.line);
    return out;
}

static bool csv_is_named(const csv_reader *r)
{
    return r->o->known ? r->o->known->named : r->o->data->target[0] != '\0';
}

/* --- what a field is --------------------------------------------------------------- */

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

static bool wants_number(const csv_reader *r)
{
    return r->o->known ? !r->o->known->classes
                       : ps_wanted_numbers(r->o->wanted, r->table->n_targets);
}

/* The column of a field that is used. */
static const char *field_name(const csv_reader *r, int64_t index)
{
    int64_t k = 0;
    while (r->fields[k] != index)
        k++;
    return r->table->columns[k].name;
}

/* The same, and the field. Returns out. */
static const char *csv_field_place(const csv_reader *r, int64_t index,
                                   char out[PS_CSV_PLACE_BYTES])
{
    if (!r->o->objects) return ps_csv_place(&r->lines, index, out);
    snprintf(out, PS_CSV_PLACE_BYTES, "sample %" PRId64 ": \"%.60s\": \"%.40s\"",
             r->table->n, field_name(r, index), r->lines.fields[index]);
    return out;
}

static ps_err csv_bad_field(const csv_reader *r, int64_t index, const char *what)
{
    char place[PS_CSV_PLACE_BYTES];
    return ps_err_set(PS_ERR_FORMAT, "%s is not %s", csv_field_place(r, index, place),
                      what);
}

/* what: that it is a number, or which one. */
static ps_err bad_number(const csv_reader *r, int64_t index, bool class, const char *what)
{
    const char *field = r->lines.fields[index];
    const char *mend = is_missing(field)          ? "fill it, or leave out the line"
                       : has_decimal_comma(field) ? "write a point for the comma, and "
                                                    "nothing between thousands"
                       : is_like_number(field)    ? "write a finite number"
                       : class ? "for classes that are texts, set data.target to "
                                 "the name of this column"
                       : !csv_is_named(r) ? "with data.target a column may have texts"
                       : r->o->known      ? "the training samples have numbers there"
                       : strpbrk(field, "0123456789")
                           ? "write the number alone; for classes, leave model.loss out"
                           : "for classes, leave model.loss out";
    char text[192];
    snprintf(text, sizeof text, "%s: %s", what, mend);
    return csv_bad_field(r, index, text);
}

/* Keeps the first place of its kind. */
static ps_err keep_place(const csv_reader *r, int64_t index, char **kept)
{
    char place[PS_CSV_PLACE_BYTES];
    return *kept ? PS_OK : ps_mem_strdup(kept, csv_field_place(r, index, place));
}

/* Of all columns, so that what to do about them can be decided at once. */
static ps_err check_missing(const ps_table *t)
{
    const ps_table_column *first = NULL;
    ps_first_names all = {0};
    for (int64_t k = 0; k < t->n_columns; k++) {
        const ps_table_column *c = &t->columns[k];
        if (!c->first_missing) continue;
        if (!first) first = c;
        ps_first_names_add(&all, "%" PRId64 " of \"%s\"", c->n_missing, c->name);
    }
    if (!first) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "%s is not a value of \"%s\": fill it, %sor leave out the line. "
                      "Missing cells: %s",
                      first->first_missing, first->name,
                      first->use != PS_COLUMN_INPUT ? ""
                      : first->fitted ? "train with data.missing mean or own, "
                                      : "set data.missing to mean or own, ",
                      ps_first_names_text(&all));
}

/* Of all classes that the training samples do not have. */
static ps_err check_new_classes(const ps_table *t, bool predicts)
{
    for (int64_t k = t->n_inputs; k < t->n_inputs + t->n_targets; k++) {
        const ps_table_column *c = &t->columns[k];
        ps_first_names all = {0};
        if (!c->fitted || c->n_unknown == 0) continue;
        for (int64_t i = 0; i < c->seen.names.n; i++)
            ps_first_names_add(&all, "\"%.40s\"", c->seen.names.names[i]);
        return ps_err_set(PS_ERR_FORMAT,
                          "%s is not a class that the training samples have: mend it, or "
                          "leave out the %s. New classes: %s, in %" PRId64 " line%s",
                          c->first_text, predicts ? "column" : "line",
                          ps_first_names_text(&all), c->n_unknown,
                          c->n_unknown == 1 ? "" : "s");
    }
    return PS_OK;
}

/* --- cells ------------------------------------------------------------------------- */

static ps_err check_class(const csv_reader *r, int64_t index, double value)
{
    if (value < 0 || value > INT32_MAX || value != floor(value))
        return csv_bad_field(r, index,
                             value == floor(value)
                                 ? "a class (a whole number from 0)"
                                 : "a class (a whole number from 0): for numbers, set "
                                   "model.loss to mse");
    return PS_OK;
}

/* A cell of a column whose categories are known. */
static ps_err known_text(const csv_reader *r, ps_table_column *c, int64_t index,
                         const char *text, ps_cell *out)
{
    const ps_column *f = c->fitted;
    char shorter[PS_CELL_TEXT];
    double value;
    int64_t place = ps_column_find(f, text);
    if (place == f->categories.n && is_number(text, &value)) // where it was no name
        place = ps_column_find(f, ps_cell_number_text(value, shorter));
    *out = ps_cell_of_text(place);
    if (place < f->categories.n) return PS_OK;
    c->n_unknown++;
    PS_TRY(keep_place(r, index, &c->first_text));
    return c->use == PS_COLUMN_TARGET ? ps_table_text(c, text, out)
           : c->unknown               ? PS_OK
                                      : ps_mem_strdup(&c->unknown, text);
}

static ps_err text_cell(const csv_reader *r, ps_table_column *c, int64_t index,
                        ps_cell *out)
{
    const char *field = r->lines.fields[index];
    const bool target = c->use == PS_COLUMN_TARGET;
    if (c->use == PS_COLUMN_KEY) return ps_table_text(c, field, out);
    if (c->fitted && c->fitted->categories.n > 0)
        return known_text(r, c, index, field, out);
    if (target && wants_number(r)) return bad_number(r, index, false, "a number");
    if (target && !csv_is_named(r))
        return bad_number(r, index, true, "a class (a whole number from 0)");
    if (c->fitted || !csv_is_named(r)) return bad_number(r, index, false, "a number");
    if (!ps_utf8_is_valid(field))
        return csv_bad_field(r, index,
                             "UTF-8: convert the file (iconv -f latin1 -t utf-8)");
    if (c->use == PS_COLUMN_INPUT && has_decimal_comma(field) &&
        ps_names_find(r->o->data->categories, c->name) < 0)
        return bad_number(r, index, false, "a number");
    PS_TRY(keep_place(r, index, &c->first_text));
    return ps_table_text(c, field, out);
}

/* A number that stands for "no class", also beside classes that have names. */
static bool stands_for_none(const csv_reader *r, const ps_table_column *c, double value)
{
    const ps_wanted *w = r->o->wanted;
    return c->use == PS_COLUMN_TARGET && !wants_number(r) && w->may_be_ignored &&
           value == w->ignore_index;
}

static ps_err number_cell(const csv_reader *r, ps_table_column *c, int64_t index,
                          double value, ps_cell *out)
{
    char text[PS_CELL_TEXT];
    const bool target = c->use == PS_COLUMN_TARGET;
    *out = value;
    if (stands_for_none(r, c, value)) return PS_OK;
    if (!isfinite((float)value))
        return target && !wants_number(r)
                   ? check_class(r, index, value)
                   : csv_bad_field(r, index, "within float32, which ends at 3.4e38");
    if (c->fitted && c->fitted->categories.n > 0)
        return known_text(r, c, index, ps_cell_number_text(value, text), out);
    if (!target) return PS_OK;
    if (!wants_number(r))
        return csv_is_named(r) && !c->fitted ? PS_OK : check_class(r, index, value);
    if (r->o->wanted->unit && (value < 0 || value > 1))
        return csv_bad_field(r, index, "from 0 to 1, as bce_with_logits takes it");
    return PS_OK;
}

/* Whether a whole number has more digits than a double can tell apart: an id. */
static bool is_long_number(const char *field)
{
    const char *digits = field + (*field == '-' || *field == '+');
    const size_t n = strspn(digits, "0123456789");
    return n > DOUBLE_DIGITS && digits[n] == '\0';
}

/* Whether a number is but a name: of a class, or in a column of data.categories. */
static bool is_name(const csv_reader *r, const ps_table_column *c)
{
    if (c->fitted) return c->fitted->categories.n > 0;
    if (!csv_is_named(r)) return false;
    return c->use == PS_COLUMN_TARGET
               ? !wants_number(r)
               : ps_names_find(r->o->data->categories, c->name) >= 0;
}

static bool cell_is_missing(const csv_reader *r, const ps_table_column *c,
                            const char *field)
{
    if (!csv_is_named(r) || c->use == PS_COLUMN_KEY) return false;
    // A class may be called none.
    const bool class = c->use == PS_COLUMN_TARGET && !wants_number(r);
    return class ? !field[0] : is_missing(field);
}

static ps_err read_cell(csv_reader *r, int64_t k)
{
    ps_table_column *c = &r->table->columns[k];
    const int64_t index = r->fields[k];
    const char *field = r->lines.fields[index];
    double value;
    if (cell_is_missing(r, c, field)) {
        const bool answer = c->use == PS_COLUMN_TARGET && r->o->wanted->nothing;
        const bool may =
            answer ||
            (c->use == PS_COLUMN_INPUT &&
             (r->o->data->missing != PS_MISSING_ERROR || (c->fitted && c->fitted->own)));
        if (!may) PS_TRY(keep_place(r, index, &c->first_missing));
        r->cells[k] = ps_cell_of_text(PS_CELL_MISSING);
        c->n_missing++;
        return PS_OK;
    }
    const bool text = c->use == PS_COLUMN_KEY || (is_long_number(field) && is_name(r, c));
    if (!text && is_number(field, &value))
        return number_cell(r, c, index, value, &r->cells[k]);
    return text_cell(r, c, index, &r->cells[k]);
}

static ps_err csv_read_line(csv_reader *r)
{
    if (r->lines.n_fields != r->line_fields)
        return ps_err_set(
            PS_ERR_FORMAT,
            "%s:%" PRId64 ": %" PRId64 " fields; the first line has %" PRId64,
            r->lines.path, r->lines.line, r->lines.n_fields, r->line_fields);
    for (int64_t k = 0; k < r->table->n_columns; k++)
        PS_TRY(read_cell(r, k));
    return ps_table_add(r->table, r->cells);
}

/* --- columns by their names -------------------------------------------------------- */

/* Those of the first line, for a message. Returns a text of f. */
static const char *list_names(const csv_reader *r, ps_first_names *f)
{
    *f = (ps_first_names){0};
    for (int64_t i = 0; i < r->lines.n_fields; i++)
        ps_first_names_add(f, strchr(r->lines.fields[i], ',') ? "\"%s\"" : "%s",
                           r->lines.fields[i]);
    return ps_first_names_text(f);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const csv_name *)a)->text, ((const csv_name *)b)->text);
}

/* One of the first line's columns of that name, or NULL. */
static const csv_name *csv_find_name(const csv_reader *r, const char *name)
{
    const csv_name wanted = {.text = name};
    return bsearch(&wanted, r->names, (size_t)r->lines.n_fields, sizeof wanted,
                   compare_names);
}

/* Whether the first line has that name. */
static bool has_column(const csv_reader *r, const char *name)
{
    if (r->names) return csv_find_name(r, name) != NULL;
    for (int64_t i = 0; i < r->lines.n_fields; i++)
        if (strcmp(r->lines.fields[i], name) == 0) return true;
    return false;
}

/* Columns that the first line does not have. */
typedef struct absent_columns {
    const char *near; // a name of the line that may be meant by the last one, or NULL
    bool any_near;
    ps_first_names names;
} absent_columns;

/* Whether a column that is used has that name. */
static bool is_used(const csv_reader *r, const char *name)
{
    for (int64_t k = 0; k < r->table->n_columns; k++)
        if (r->table->columns[k].name && strcmp(r->table->columns[k].name, name) == 0)
            return true;
    return false;
}

static void add_absent(const csv_reader *r, const char *name, absent_columns *a)
{
    const bool used = r->table->columns != NULL; // the table's name is the one to mend
    a->near = NULL;
    if (a->names.n < PS_FIRST_NAMES_MOST) // no others are shown
        a->near = ps_nearest_name(name, (const char *const *)r->lines.fields,
                                  (int)r->lines.n_fields);
    a->any_near = a->any_near || a->near;
    if (used && a->near && is_used(r, a->near)) a->near = NULL;
    if (a->near)
        ps_first_names_add(&a->names,
                           used ? "\"%s\" (rename \"%s\", if it is meant)"
                                : "\"%s\" (is it \"%s\"?)",
                           name, a->near);
    else
        ps_first_names_add(&a->names, "\"%s\"", name);
}

/* Of those that the table has already. */
static ps_err lacks_columns(const csv_reader *r, absent_columns *a)
{
    ps_first_names names;
    const bool one = a->names.n == 1;
    char place[PLACE_BYTES];
    bool any = a->any_near || r->o->objects;
    for (int64_t k = 0; k < r->table->n_inputs; k++)
        any = any || has_column(r, r->table->columns[k].name);
    if (!any)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: the first line has none of the columns' names (%s): put a "
                          "line with the names before the others, if it is a table of "
                          "these columns (it has: %s)",
                          csv_line_place(r, place), ps_first_names_text(&a->names),
                          list_names(r, &names));
    return ps_err_set(
        PS_ERR_FORMAT, "%s: %s missing: %s; %s: %s", csv_line_place(r, place),
        one ? "a column is" : "columns are", ps_first_names_text(&a->names),
        r->o->objects ? "it has" : "the first line has", list_names(r, &names));
}

/* A first line with numbers has values, not names. */
static bool csv_has_numbers(const csv_reader *r)
{
    double value;
    for (int64_t i = 0; i < r->lines.n_fields; i++)
        if (is_number(r->lines.fields[i], &value)) return true;
    return false;
}

/* key: names them. */
static ps_err check_absent(const csv_reader *r, const char *key, absent_columns *a)
{
    ps_first_names names;
    char place[PLACE_BYTES];
    if (a->names.n == 0) return PS_OK;
    if (r->table->columns) return lacks_columns(r, a);
    const char *is = a->names.n == 1 ? "is no column" : "are no columns";
    if (r->lines.n_fields == 1)
        return ps_err_set(
            PS_ERR_FORMAT,
            "%s: there %s %s, which %s names: the first line is a single column, "
            "\"%s\": put commas, semicolons or tabs between columns",
            csv_line_place(r, place), is, ps_first_names_text(&a->names), key,
            list_names(r, &names));
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: there %s %s, which %s names; the first line has: %s%s",
                      csv_line_place(r, place), is, ps_first_names_text(&a->names), key,
                      list_names(r, &names),
                      csv_has_numbers(r) ? ": put a line with the names before it" : "");
}

/* A table may have a hundred thousand columns, each of which is looked for. */
static ps_err csv_sort_names(csv_reader *r)
{
    const int64_t n = r->lines.n_fields;
    PS_TRY(PS_NEW(&r->names, (size_t)n, "names of columns"));
    for (int64_t i = 0; i < n; i++)
        r->names[i] = (csv_name){.text = r->lines.fields[i], .place = i};
    qsort(r->names, (size_t)n, sizeof *r->names, compare_names);
    return PS_OK;
}

/* *out: the column's place in the first line; -1: it is absent. */
static ps_err find_column(const csv_reader *r, const char *key, const char *name,
                          absent_columns *absent, int64_t *out)
{
    const csv_name *found = csv_find_name(r, name), *end = r->names + r->lines.n_fields;
    *out = found ? found->place : -1;
    if (!found) {
        add_absent(r, name, absent);
        return PS_OK;
    }
    if ((found > r->names && strcmp(found[-1].text, name) == 0) ||
        (found + 1 < end && strcmp(found[1].text, name) == 0))
        return ps_err_set(PS_ERR_FORMAT,
                          "%s:%" PRId64 ": two columns are named \"%s\" (%s): give "
                          "each a name of its own",
                          r->lines.path, r->lines.line, name, key);
    return PS_OK;
}

/* other: names that may not be among them; other_key has these. */
static ps_err find_all(const csv_reader *r, const char *key, ps_names names,
                       const char *other_key, ps_names other)
{
    char name[NAME_BYTES];
    absent_columns absent = {0};
    int64_t place;
    for (int i = 0; ps_names_at(names, i, name, sizeof name); i++) {
        PS_TRY(find_column(r, key, name, &absent, &place));
        if (ps_names_find(other, name) >= 0)
            return ps_err_set(PS_ERR_CONFIG,
                              "%s: \"%s\" is in %s, too: leave it out of one", key, name,
                              other_key);
    }
    return check_absent(r, key, &absent);
}

static ps_err set_column(ps_table *t, int64_t k, const char *name, ps_column_use use,
                         const ps_column *fitted)
{
    if (!ps_utf8_is_valid(name))
        return ps_err_set(PS_ERR_FORMAT,
                          "the name \"%.40s\" of a column is not UTF-8: convert the file "
                          "(iconv -f latin1 -t utf-8)",
                          name);
    t->columns[k].use = use;
    t->columns[k].fitted = fitted;
    return ps_mem_strdup(&t->columns[k].name, name);
}

static bool is_input(const csv_reader *r, const char *name)
{
    const ps_config_data *d = r->o->data;
    if (ps_names_find(d->target, name) >= 0 || ps_names_find(d->drop, name) >= 0)
        return false;
    return !d->columns[0] || ps_names_find(d->columns, name) >= 0;
}

/* Whether data.test needs a column's order, for which its cells stand once more. */
static bool csv_has_order(const csv_reader *r)
{
    const char *by = r->o->data->test_by;
    return !r->o->wanted->nothing && strcmp(by, "random") != 0 &&
           strcmp(by, "order") != 0;
}

static int64_t count_names(ps_names names)
{
    char name[NAME_BYTES];
    int n = 0;
    while (ps_names_at(names, n, name, sizeof name))
        n++;
    return n;
}

/* The columns of a table that is to be fitted. */
static ps_err choose_columns(csv_reader *r)
{
    const ps_config_data *d = r->o->data;
    char name[NAME_BYTES];
    absent_columns absent = {0};
    int64_t inputs = 0, k = 0, place;
    PS_TRY(find_all(r, "data.target", d->target, "data.drop", d->drop));
    PS_TRY(find_all(r, "data.columns", d->columns, "data.target", d->target));
    PS_TRY(find_all(r, "data.drop", d->drop, "data.columns", d->columns));
    PS_TRY(find_all(r, "data.categories", d->categories, "data.target", d->target));
    PS_TRY(find_all(r, "data.categories", d->categories, "data.drop", d->drop));
    const bool ordered = csv_has_order(r);
    if (ordered) PS_TRY(find_column(r, "data.test_by", d->test_by, &absent, &place));
    PS_TRY(check_absent(r, "data.test_by", &absent));
    for (int64_t i = 0; i < r->lines.n_fields; i++)
        inputs += is_input(r, r->lines.fields[i]);
    if (inputs == 0)
        return ps_err_set(PS_ERR_CONFIG,
                          "%s:%" PRId64 ": no column is left to predict from",
                          r->lines.path, r->lines.line);
    const int64_t targets = count_names(d->target);
    PS_TRY(ps_table_init(r->table, inputs + targets + ordered, r->o->folder));
    r->table->n_inputs = inputs;
    r->table->n_targets = targets;
    for (int64_t i = 0; i < r->lines.n_fields; i++)
        if (is_input(r, r->lines.fields[i]))
            PS_TRY(set_column(r->table, k++, r->lines.fields[i], PS_COLUMN_INPUT, NULL));
    for (int i = 0; i < targets; i++)
        PS_TRY(set_column(r->table, k++, ps_names_at(d->target, i, name, sizeof name),
                          PS_COLUMN_TARGET, NULL));
    return ordered ? set_column(r->table, k, d->test_by, PS_COLUMN_ORDER, NULL) : PS_OK;
}

/* The column of that name; NULL: a state does not have it. */
static const ps_column *known_column(const ps_preprocessing *p, const char *name)
{
    for (int64_t i = 0; i < p->n_columns; i++)
        if (strcmp(p->columns[i].name, name) == 0) return &p->columns[i];
    return NULL;
}

static ps_err other_columns(const char *key, const char *does, const char *name)
{
    return ps_err_set(PS_ERR_CONFIG,
                      "%s: the weights that are given (train.init) %s \"%s\": give what "
                      "they were trained with, or train.init_strict=false",
                      key, does, name);
}

/* Keys that would decide which columns are read how, had no state decided it. */
static ps_err check_known_columns(const csv_reader *r)
{
    const ps_preprocessing *p = r->o->known;
    const ps_config_data *d = r->o->data;
    char name[NAME_BYTES];
    for (int i = 0; ps_names_at(d->drop, i, name, sizeof name); i++)
        if (known_column(p, name)) return other_columns("data.drop", "read", name);
    for (int i = 0; ps_names_at(d->columns, i, name, sizeof name); i++)
        if (!known_column(p, name))
            return other_columns("data.columns", "do not read", name);
    for (int64_t i = 0; i < p->n_columns && d->columns[0]; i++)
        if (ps_names_find(d->columns, p->columns[i].name) < 0)
            return other_columns("data.columns", "also read", p->columns[i].name);
    for (int i = 0; ps_names_at(d->categories, i, name, sizeof name); i++) {
        const ps_column *c = known_column(p, name);
        if (c && c->categories.n == 0)
            return other_columns("data.categories", "read numbers in", name);
    }
    for (int64_t i = 0; i < p->n_targets && d->target[0]; i++)
        if (ps_names_find(d->target, p->targets[i].name) != i)
            return ps_err_set(PS_ERR_CONFIG,
                              "data.target: the weights that are given (train.init) "
                              "predict \"%s\"",
                              p->targets[i].name);
    return PS_OK;
}

/* The columns that a state knows; without answers where they need not be there. */
static ps_err know_columns(csv_reader *r)
{
    const ps_preprocessing *p = r->o->known;
    const ps_config_data *d = r->o->data;
    char name[NAME_BYTES];
    const bool ordered = csv_has_order(r);
    int64_t targets = p->n_targets, keys = 0, k = 0;
    for (int64_t i = 0; i < p->n_targets && r->o->wanted->nothing; i++)
        if (!has_column(r, p->targets[i].name)) targets = 0;
    for (int i = 0; r->o->keys && ps_names_at(d->drop, i, name, sizeof name); i++)
        keys += has_column(r, name);
    PS_TRY(check_known_columns(r));
    PS_TRY(
        ps_table_init(r->table, p->n_columns + targets + keys + ordered, r->o->folder));
    r->table->n_inputs = p->n_columns;
    r->table->n_targets = targets;
    for (int64_t i = 0; i < p->n_columns; i++)
        PS_TRY(set_column(r->table, k++, p->columns[i].name, PS_COLUMN_INPUT,
                          &p->columns[i]));
    for (int64_t i = 0; i < targets; i++)
        PS_TRY(set_column(r->table, k++, p->targets[i].name, PS_COLUMN_TARGET,
                          &p->targets[i]));
    for (int i = 0; r->o->keys && ps_names_at(d->drop, i, name, sizeof name); i++)
        if (has_column(r, name))
            PS_TRY(set_column(r->table, k++, name, PS_COLUMN_KEY, NULL));
    return ordered ? set_column(r->table, k, d->test_by, PS_COLUMN_ORDER, NULL) : PS_OK;
}

/* --- columns by their places ------------------------------------------------------- */

/* out->names: of the first file that has names. */
static ps_err take_names(const csv_reader *r)
{
    char where[PATH_MAX];
    const ps_csv_lines *l = &r->lines;
    const ps_class_names own = {.n = l->n_fields, .names = l->fields};
    snprintf(where, sizeof where, "%s:%" PRId64, l->path, l->line);
    if (r->table->names.n > 0)
        return ps_dataset_columns_check(&own, where, &r->table->names,
                                        "a file before it");
    return ps_class_names_copy(&own, &r->table->names);
}

static ps_err note_names(const csv_reader *r)
{
    ps_first_names names;
    return ps_dataset_note(&r->table->notes, "%s:%" PRId64 ": names of columns: %s",
                           r->lines.path, r->lines.line, list_names(r, &names));
}

/* A state of such a table has as many columns as a line, or one less: without answer. */
static ps_err number_columns(csv_reader *r)
{
    const ps_preprocessing *p = r->o->known;
    const int64_t n = r->lines.n_fields;
    const bool answer =
        r->o->wanted->nothing ? p && n == p->n_columns + 1 : !r->o->wanted->nothing;
    const int64_t inputs = n - answer;
    char name[PS_CELL_TEXT];
    if (inputs < 1)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s:%" PRId64 ": only one column; a line has numbers, then "
                          "a class",
                          r->lines.path, r->lines.line);
    if (p && inputs != p->n_columns)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s:%" PRId64 ": %" PRId64 " columns of numbers; the training "
                          "samples have %" PRId64,
                          r->lines.path, r->lines.line, inputs, p->n_columns);
    PS_TRY(ps_table_init(r->table, n, r->o->folder));
    r->table->n_inputs = inputs;
    r->table->n_targets = answer;
    for (int64_t k = 0; k < n; k++) {
        const bool target = answer && k == inputs;
        const ps_column *fitted = !p ? NULL : target ? &p->targets[0] : &p->columns[k];
        snprintf(name, sizeof name, "%" PRId64, k + 1);
        PS_TRY(set_column(r->table, k, name, target ? PS_COLUMN_TARGET : PS_COLUMN_INPUT,
                          fitted));
    }
    return PS_OK;
}

/* Whether the line is 0, 1, 2, ...: what pandas writes where a table has no names. */
static bool counts_columns(const csv_reader *r)
{
    double value;
    for (int64_t i = 0; i < r->lines.n_fields; i++)
        if (!is_number(r->lines.fields[i], &value) || value != (double)i) return false;
    return true;
}

/* Names, of which none is a number, or a sample. */
static ps_err read_first_numbers(csv_reader *r)
{
    int64_t numbers = 0, other = -1;
    const ps_csv_lines *l = &r->lines;
    for (int64_t i = 0; i < l->n_fields; i++)
        if (is_like_number(l->fields[i]))
            numbers++;
        else if (other < 0)
            other = i;
    if (numbers == 0) {
        PS_TRY(take_names(r));
        return note_names(r);
    }
    if (other >= 0)
        return bad_number(r, other,
                          r->table->n_targets > 0 && other == r->table->n_inputs,
                          "a number, as others of the first line are (a line of names "
                          "has none)");
    if (counts_columns(r))
        PS_TRY(ps_dataset_note(&r->table->doubts,
                               "%s:%" PRId64 ": 0, 1, 2, ... is taken as a sample; if it "
                               "is what pandas wrote as names, save with header=False",
                               l->path, l->line));
    return csv_read_line(r);
}

/* --- files ------------------------------------------------------------------------- */

/* By their places. pandas' index has no name in the files that it writes. */
static ps_err csv_name_unnamed(csv_reader *r)
{
    enum { UNNAMED_BYTES = 32 };
    char *name;
    if (!has_column(r, "") || r->lines.n_fields < 2) return PS_OK;
    PS_TRY(ps_mem_zalloc(&r->unnamed, (size_t)r->lines.n_fields, UNNAMED_BYTES,
                         "names of columns"));
    for (int64_t i = 0; i < r->lines.n_fields; i++) {
        if (r->lines.fields[i][0]) continue;
        name = r->unnamed + i * UNNAMED_BYTES;
        snprintf(name, UNNAMED_BYTES, "column %" PRId64, i + 1);
        r->lines.fields[i] = name;
    }
    return PS_OK;
}

/* The columns of the first file, and where they are in this one. */
static ps_err csv_find_places(csv_reader *r)
{
    ps_table *t = r->table;
    absent_columns absent = {0};
    const bool first = t->columns == NULL;
    if (csv_is_named(r)) PS_TRY(csv_sort_names(r));
    if (first && csv_is_named(r))
        PS_TRY(r->o->known ? know_columns(r) : choose_columns(r));
    if (first && !csv_is_named(r)) PS_TRY(number_columns(r));
    if (!first && !csv_is_named(r) && r->line_fields != t->n_columns)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: %" PRId64 " columns; the file before has %" PRId64,
                          r->lines.path, r->line_fields, t->n_columns);
    PS_TRY(PS_NEW(&r->fields, (size_t)t->n_columns, "columns"));
    PS_TRY(PS_NEW(&r->cells, (size_t)t->n_columns, "columns"));
    for (int64_t k = 0; k < t->n_columns; k++) {
        r->fields[k] = k;
        if (csv_is_named(r))
            PS_TRY(find_column(r, "a column that is used", t->columns[k].name, &absent,
                               &r->fields[k]));
    }
    return check_absent(r, "", &absent);
}

static ps_err csv_read_lines(csv_reader *r)
{
    PS_TRY(ps_csv_lines_next(&r->lines));
    if (r->lines.n_fields == 0)
        return ps_err_set(PS_ERR_FORMAT, "%s: the file is empty", r->lines.path);
    r->line_fields = r->lines.n_fields;
    if (csv_is_named(r)) PS_TRY(csv_name_unnamed(r));
    PS_TRY(csv_find_places(r));
    if (!csv_is_named(r)) PS_TRY(read_first_numbers(r));
    for (;;) {
        PS_TRY(ps_csv_lines_next(&r->lines));
        if (r->lines.n_fields == 0) return PS_OK;
        PS_TRY(csv_read_line(r));
    }
}

/* Of a reader whose lines are open, or err. */
static ps_err csv_read_file(csv_reader *r, ps_err err)
{
    if (err == PS_OK) err = csv_read_lines(r);
    ps_csv_lines_fini(&r->lines);
    free(r->fields);
    free(r->cells);
    free(r->unnamed);
    free(r->names);
    return err;
}

static ps_err csv_finish(const char *path, const ps_csv_options *o, ps_table *t)
{
    for (int64_t k = 0; k < t->n_inputs; k++) {
        const ps_table_column *c = &t->columns[k];
        if (c->n_unknown > 0)
            PS_TRY(ps_dataset_note(&t->doubts,
                                   "%s: %" PRId64 " cell%s of \"%s\" %s a text that the "
                                   "training samples do not have, such as \"%.40s\": it "
                                   "counts as none",
                                   path, c->n_unknown, c->n_unknown == 1 ? "" : "s",
                                   c->name, c->n_unknown == 1 ? "has" : "have",
                                   c->unknown));
    }
    if (t->n == 0) return ps_err_set(PS_ERR_FORMAT, "%s: holds no sample", path);
    PS_TRY(check_missing(t));
    PS_TRY(check_new_classes(t, o->wanted->nothing));
    return ps_table_end(t);
}

ps_err ps_csv_parse(const char *path, char *text, uint64_t bytes, const ps_csv_options *o,
                    ps_table *out)
{
    csv_reader r = {.o = o, .table = out};
    *out = (ps_table){.fd = -1};
    PS_TRY(csv_read_file(&r, ps_csv_lines_of_text(&r.lines, path, text, bytes)));
    return csv_finish(path, o, out);
}

ps_err ps_csv_read(char *const *paths, int n_paths, const ps_csv_options *o,
                   ps_table *out)
{
    *out = (ps_table){.fd = -1};
    for (int i = 0; i < n_paths; i++) {
        csv_reader r = {.o = o, .table = out};
        PS_TRY(csv_read_file(&r, ps_csv_lines_open(&r.lines, paths[i])));
    }
    return csv_finish(n_paths > 0 ? paths[0] : "csv", o, out);
}
