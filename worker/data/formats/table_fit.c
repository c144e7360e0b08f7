#include "table_fit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "first_names.h"
#include "hash.h"
#include "mem.h"
#include "parse_text.h"
#include "readable.h"

enum {
    MOST_ONEHOT = 100, // data.encoding: auto
    MOST_CATEGORIES = 1000,
    FEW_CATEGORIES = 20,
    MOST_EMBEDDED = 100000
};

#define LONG_NUMBER 1e15 // from here on a whole number has more digits than DBL_DIG

/* What the cells of a column are. */
typedef struct column_sums {
    int64_t numbers, texts, missing;
    double sum, squares; // squares: of what is above or below the mean
    bool whole;          // numbers without a fraction
    bool rises;          // each number is above the one before
    bool constant;       // each number is the one before
    double least, last;
    double largest_whole; // of the numbers without a fraction, by size
} column_sums;

/* --- sums -------------------------------------------------------------------------- */

/* A number that stands for "no class" is no cell. */
static bool cell_is_ignored(const ps_table_column *c, const ps_wanted *w, ps_cell cell)
{
    return c->use == PS_COLUMN_TARGET && w->may_be_ignored && ps_cell_is_number(cell) &&
           cell == w->ignore_index;
}

static void sums_add(column_sums *s, ps_cell cell)
{
    if (ps_cell_is_number(cell)) {
        s->least = s->numbers == 0 || cell < s->least ? cell : s->least;
        s->whole = (s->numbers == 0 || s->whole) && cell == floor(cell);
        s->rises = s->numbers == 0 || (s->rises && cell > s->last);
        s->constant = s->numbers == 0 || (s->constant && cell == s->last);
        if (cell == floor(cell)) s->largest_whole = fmax(s->largest_whole, fabs(cell));
        s->last = cell;
        s->numbers++;
        s->sum += cell;
    } else if (ps_cell_is_missing(cell)) {
        s->missing++;
    } else {
        s->texts++;
    }
}

/* Calls for each cell of a line; ctx: (n_columns) sums. */
static ps_err sum_table(const ps_table *t, const ps_wanted *w, column_sums *sums)
{
    ps_table_scan scan = {.table = t};
    for (const ps_cell *row; (row = ps_table_scan_next(&scan));)
        for (int64_t k = 0; k < t->n_columns; k++)
            if (!cell_is_ignored(&t->columns[k], w, row[k])) sums_add(&sums[k], row[k]);
    scan.next = 0;
    for (const ps_cell *row; (row = ps_table_scan_next(&scan));)
        for (int64_t k = 0; k < t->n_columns; k++) {
            const double mean = sums[k].sum / (double)sums[k].numbers;
            if (ps_cell_is_number(row[k]) && !cell_is_ignored(&t->columns[k], w, row[k]))
                sums[k].squares += (row[k] - mean) * (row[k] - mean);
        }
    return ps_table_scan_end(&scan);
}

/* --- a column ---------------------------------------------------------------------- */

static ps_err fit_numbers(const ps_table_column *from, const column_sums *s,
                          bool standardize, ps_column *c)
{
    const double n = (double)s->numbers;
    if (s->numbers == 0)
        return ps_err_set(
            PS_ERR_FORMAT,
            "the training samples have no value of \"%s\": leave the column "
            "out (data.drop)",
            from->name);
    c->mean = 0;
    c->std = 1;
    c->fill = s->sum / n;
    if (!standardize) return PS_OK;
    c->mean = c->fill;
    c->std = sqrt(s->squares / n);
    if (!(c->std > fabs(c->mean) * 1e-14)) c->std = 1; // all are alike, but for rounding
    return PS_OK;
}

/* All texts of the column, numbers too, are numbered as they come. */
static ps_err number_texts(ps_table *t, int64_t k, const ps_wanted *w)
{
    char text[PS_CELL_TEXT];
    ps_table_scan scan = {.table = t};
    ps_cell cell = 0;
    for (const ps_cell *row; (row = ps_table_scan_next(&scan));) {
        if (!ps_cell_is_number(row[k]) || cell_is_ignored(&t->columns[k], w, row[k]))
            continue;
        scan.err =
            ps_table_text(&t->columns[k], ps_cell_number_text(row[k], text), &cell);
        if (scan.err == PS_OK) scan.err = ps_table_set(t, scan.line, k, cell);
    }
    return ps_table_scan_end(&scan);
}

/* counts: (texts) of the column's cells. */
static ps_err count_texts(const ps_table *t, int64_t k, int64_t *counts)
{
    ps_table_scan scan = {.table = t};
    for (const ps_cell *row; (row = ps_table_scan_next(&scan));)
        if (!ps_cell_is_number(row[k]) && !ps_cell_is_missing(row[k]))
            counts[ps_cell_text(row[k])]++;
    return ps_table_scan_end(&scan);
}

static ps_err renumber_texts(ps_table *t, int64_t k, const int64_t *places)
{
    ps_table_scan scan = {.table = t};
    for (const ps_cell *row; (row = ps_table_scan_next(&scan));)
        if (!ps_cell_is_number(row[k]) && !ps_cell_is_missing(row[k]))
            scan.err = ps_table_set(t, scan.line, k,
                                    ps_cell_of_text(places[ps_cell_text(row[k])]));
    return ps_table_scan_end(&scan);
}

typedef struct category {
    const char *name;
    int64_t text, count;
} category;

static int by_category(const void *a, const void *b)
{
    return ps_category_order(((const category *)a)->name, ((const category *)b)->name);
}

/* list: (n) of the texts that have cells, sorted. places: (texts) */
static ps_err fit_take_categories(const category *list, int64_t n, int64_t *places,
                                  ps_column *c)
{
    int64_t all = 0;
    PS_TRY(PS_NEW(&c->categories.names, (size_t)n, "categories"));
    PS_TRY(PS_NEW(&c->shares, (size_t)n, "categories"));
    for (int64_t i = 0; i < n; i++)
        all += list[i].count;
    for (int64_t i = 0; i < n; i++) {
        PS_TRY(ps_mem_strdup(&c->categories.names[i], list[i].name));
        c->categories.n++;
        c->shares[i] = (double)list[i].count / (double)all;
        places[list[i].text] = i;
    }
    return PS_OK;
}

static ps_err check_categories(const ps_table_column *from, int64_t n, bool embedded)
{
    const int most = embedded ? MOST_EMBEDDED : MOST_CATEGORIES;
    if (n <= most || from->use == PS_COLUMN_TARGET) return PS_OK;
    return ps_err_set(PS_ERR_CONFIG,
                      "the column \"%s\" has %" PRId64 " different texts, such as "
                      "\"%.40s\"; at most %d %s: leave it out (data.drop), or "
                      "make fewer of them%s",
                      from->name, n, from->seen.names.names[0], most,
                      embedded ? "are embedded" : "become inputs",
                      embedded ? "" : ", or set data.encoding=auto");
}

/* how: data.encoding. */
static ps_err sort_texts(ps_table *t, int64_t k, ps_encoding how, category *list,
                         int64_t *counts, ps_column *c)
{
    const ps_texts *seen = &t->columns[k].seen;
    int64_t n = 0;
    PS_TRY(count_texts(t, k, counts));
    for (int64_t i = 0; i < seen->names.n; i++)
        if (counts[i] > 0) list[n++] = (category){seen->names.names[i], i, counts[i]};
    c->embedded =
        how == PS_ENCODING_EMBEDDING || (how == PS_ENCODING_AUTO && n > MOST_ONEHOT);
    PS_TRY(check_categories(&t->columns[k], n, c->embedded));
    qsort(list, (size_t)n, sizeof *list, by_category);
    PS_TRY(fit_take_categories(list, n, counts, c));
    return renumber_texts(t, k, counts);
}

static ps_err fit_categories(ps_table *t, int64_t k, const ps_wanted *w, ps_encoding how,
                             ps_column *c)
{
    category *list = NULL;
    int64_t *counts = NULL;
    PS_TRY(number_texts(t, k, w));
    const size_t n = (size_t)t->columns[k].seen.names.n;
    ps_err err = PS_NEW(&list, n, "categories");
    if (err == PS_OK) err = PS_NEW(&counts, n, "categories");
    if (err == PS_OK) err = sort_texts(t, k, how, list, counts, c);
    free(list);
    free(counts);
    return err;
}

/* --- all columns ------------------------------------------------------------------- */

static ps_err check_answers(const ps_table *t, const ps_wanted *w)
{
    const int64_t n = t->n_targets;
    char mend[PS_OUTPUTS_TEXT];
    if (n > 1 && !w->numbers)
        return ps_err_set(PS_ERR_CONFIG,
                          "data.target: %" PRId64 " columns are numbers to predict: set "
                          "model.loss to mse, or name one column of classes",
                          n);
    if (n > 1 && w->n > 0 && w->n != n)
        return ps_err_set(PS_ERR_CONFIG,
                          "data.target: %" PRId64 " columns; the model has %" PRId64
                          " output%s: %s",
                          n, w->n, w->n > 1 ? "s" : "", ps_wanted_outputs(w, n, mend));
    return PS_OK;
}

static ps_err check_classes(const ps_column *c, const ps_wanted *w)
{
    ps_first_names names = {0};
    char mend[PS_OUTPUTS_TEXT], as_number[PS_OUTPUTS_TEXT + 40] = "";
    const int64_t n = c->categories.n;
    if (w->n == 0 || n <= w->n) return PS_OK;
    bool numbers = true;
    for (int64_t i = 0; i < n; i++) {
        double value;
        numbers = numbers && ps_parse_double(c->categories.names[i], &value);
        ps_first_names_add(&names, "%s", c->categories.names[i]);
    }
    if (numbers)
        snprintf(as_number, sizeof as_number, "to predict it as a number, %s; else ",
                 w->numbers ? ps_wanted_outputs(w, 1, mend) : "set model.loss to mse");
    return ps_err_set(PS_ERR_CONFIG,
                      "data.target: \"%s\" has %" PRId64
                      " classes (%s), and the model %" PRId64 " output%s: %s%s",
                      c->name, n, ps_first_names_text(&names), w->n, w->n > 1 ? "s" : "",
                      as_number, ps_wanted_outputs(w, n, mend));
}

/* Classes that are 0, 1, ... keep their numbers. */
static ps_err fit_classes(ps_table *t, int64_t k, const column_sums *s,
                          const ps_wanted *w, ps_column *c)
{
    c->std = 1;
    if (s->texts == 0 && s->whole && s->least == 0) return PS_OK;
    if (s->texts == 0 && !s->whole && !w->numbers)
        return ps_err_set(PS_ERR_CONFIG,
                          "data.target: \"%s\" has numbers, such as %.15g: to predict "
                          "numbers, set model.loss to mse",
                          c->name, s->least);
    PS_TRY(fit_categories(t, k, w, PS_ENCODING_ONEHOT, c));
    return check_classes(c, w);
}

/* A few texts among numbers are mistakes, not categories. Of all columns, so that what to
 * do about them can be decided at once. */
static ps_err check_strays(const ps_table *t, const ps_config_data *data,
                           const column_sums *sums)
{
    int64_t first = -1;
    ps_first_names all = {0};
    for (int64_t k = 0; k < t->n_inputs && data->target[0]; k++) {
        const column_sums *s = &sums[k];
        if (s->texts == 0 || s->numbers <= s->texts ||
            ps_names_find(data->categories, t->columns[k].name) >= 0)
            continue;
        if (first < 0) first = k;
        ps_first_names_add(&all, "%" PRId64 " of \"%s\"", s->texts, t->columns[k].name);
    }
    if (first < 0) return PS_OK;
    const ps_table_column *from = &t->columns[first];
    const column_sums *s = &sums[first];
    return ps_err_set(PS_ERR_FORMAT,
                      "%s is not a number, as %" PRId64 " of the %" PRId64
                      " values of \"%s\" are: write a number, or empty the cell and set "
                      "data.missing; if the column has categories, set "
                      "data.categories to [%s]. Such cells: %s",
                      from->first_text, s->numbers, s->numbers + s->texts, from->name,
                      from->name, ps_first_names_text(&all));
}

/* Ids that a double cannot tell apart are categories only where the reader takes them as
 * names. */
static ps_err check_long_numbers(const column_sums *s, const ps_column *c)
{
    if (!(s->largest_whole >= LONG_NUMBER)) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "\"%s\" has texts, and numbers of more than 15 digits, such as "
                      "%.0f: set data.categories to [%s], so that each digit counts",
                      c->name, s->largest_whole, c->name);
}

/* An index, or an id: it says nothing of new samples, and all where lines are sorted. */
static ps_err doubt_numbers(ps_table *t, const column_sums *s, const ps_column *c)
{
    if (!s->whole || !s->rises || s->numbers < FEW_CATEGORIES) return PS_OK;
    return ps_dataset_note(&t->doubts,
                           "\"%s\" rises from line to line: if it is an index or an id, "
                           "add it to data.drop",
                           c->name);
}

/* Such as "110.4 m2", but no dates. */
static bool is_number_with_unit(const char *text)
{
    char *end;
    strtod(text, &end);
    while (*end == ' ')
        end++;
    return end != text && *end != '\0' && !strchr("-/:.,_", *end);
}

static ps_err doubt_units(ps_table *t, const ps_column *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->categories.n; i++)
        n += is_number_with_unit(c->categories.names[i]);
    if (c->categories.n < FEW_CATEGORIES || n < c->categories.n) return PS_OK;
    return ps_dataset_note(&t->doubts,
                           "all texts of \"%s\" begin with a number, such as \"%.40s\": "
                           "write the number alone",
                           c->name, c->categories.names[0]);
}

/* Of names, dates, or numbers that are written as texts nothing can be learnt. */
static ps_err doubt_categories(ps_table *t, const column_sums *s, const ps_column *c)
{
    const int64_t n = c->categories.n;
    if (n < FEW_CATEGORIES || n <= s->texts / 2) return PS_OK;
    return ps_dataset_note(&t->doubts,
                           "\"%s\" has %" PRId64 " different texts in %" PRId64
                           " lines%s: to leave it out, add it to data.drop",
                           c->name, n, s->texts,
                           c->embedded ? "" : ", each of which becomes an input");
}

static ps_err doubt_constant(ps_table *t, const column_sums *s, const ps_column *c)
{
    const bool text = c->categories.n == 1;
    if (s->numbers + s->texts < FEW_CATEGORIES || c->own || (!text && !s->constant))
        return PS_OK;
    char number[32];
    snprintf(number, sizeof number, "%.6g", s->least);
    return ps_dataset_note(&t->doubts,
                           "\"%s\" is %.40s in every line, and says nothing: add it to "
                           "data.drop",
                           c->name, text ? c->categories.names[0] : number);
}

static ps_err fit_column(ps_table *t, int64_t k, const ps_config_data *data,
                         const ps_wanted *w, const column_sums *s, ps_column *c)
{
    const bool named = data->target[0] != '\0';
    const bool target = k >= t->n_inputs;
    PS_TRY(ps_mem_strdup(&c->name, t->columns[k].name));
    c->std = 1;
    if (!named) return PS_OK;
    c->own = !target && data->missing == PS_MISSING_OWN && s->missing > 0;
    if (target && !ps_wanted_numbers(w, t->n_targets)) return fit_classes(t, k, s, w, c);
    const bool categories = ps_names_find(data->categories, c->name) >= 0;
    if (s->texts == 0 && !categories) {
        PS_TRY(
            fit_numbers(&t->columns[k], s, data->standardize && !(target && w->unit), c));
        if (!target) PS_TRY(doubt_constant(t, s, c));
        return target ? PS_OK : doubt_numbers(t, s, c);
    }
    if (!categories) PS_TRY(check_long_numbers(s, c));
    PS_TRY(fit_categories(t, k, w, data->encoding, c));
    if (c->embedded) c->own = s->missing > 0;
    if (!target) PS_TRY(doubt_constant(t, s, c));
    if (categories) return PS_OK;
    PS_TRY(doubt_units(t, c));
    return doubt_categories(t, s, c);
}

static ps_err fit_table(ps_table *t, const ps_config_data *data, const ps_wanted *w,
                        const column_sums *sums, ps_preprocessing *p)
{
    PS_TRY(check_strays(t, data, sums));
    PS_TRY(PS_NEW(&p->columns, (size_t)t->n_inputs, "columns"));
    PS_TRY(PS_NEW(&p->targets, (size_t)t->n_targets, "targets"));
    p->named = data->target[0] != '\0';
    p->classes = t->n_targets == 1 && !ps_wanted_numbers(w, t->n_targets);
    p->n_columns = t->n_inputs;
    p->n_targets = t->n_targets;
    for (int64_t k = 0; k < t->n_inputs + t->n_targets; k++)
        PS_TRY(
            fit_column(t, k, data, w, &sums[k],
                       k < t->n_inputs ? &p->columns[k] : &p->targets[k - t->n_inputs]));
    ps_preprocessing_count(p);
    return PS_OK;
}

ps_err ps_table_fit(ps_table *t, const ps_config_data *data, const ps_wanted *wanted,
                    ps_preprocessing **out)
{
    column_sums *sums = NULL;
    ps_preprocessing *p = NULL;
    *out = NULL;
    PS_TRY(check_answers(t, wanted));
    ps_err err = PS_NEW(&sums, (size_t)t->n_columns, "columns");
    if (err == PS_OK) err = PS_NEW(&p, 1, "the preprocessing");
    if (err == PS_OK) err = sum_table(t, wanted, sums);
    if (err == PS_OK) err = fit_table(t, data, wanted, sums, p);
    free(sums);
    if (err == PS_OK)
        *out = p;
    else
        ps_preprocessing_destroy(&p);
    return err;
}

/* --- samples ----------------------------------------------------------------------- */

static void take_answers(const ps_table *t, const ps_preprocessing *p, const ps_cell *row,
                         int64_t i, ps_dataset *out)
{
    for (int64_t k = 0; k < out->n_targets; k++)
        out->targets[i * out->n_targets + k] =
            (float)((row[t->n_inputs + k] - p->targets[k].mean) / p->targets[k].std);
    if (!out->labels || t->n_targets == 0) return;
    const ps_cell cell = row[t->n_inputs];
    out->labels[i] =
        (int32_t)(ps_cell_is_number(cell) ? cell : (double)ps_cell_text(cell));
}

static ps_err make_answers(const ps_table *t, const ps_preprocessing *p, ps_dataset *out)
{
    const size_t n = (size_t)t->n;
    out->answered = t->n_targets > 0 && t->columns[t->n_inputs].n_missing == 0;
    for (int64_t k = 1; k < t->n_targets; k++)
        out->answered &= t->columns[t->n_inputs + k].n_missing == 0;
    if (out->answered && !p->classes) {
        out->n_targets = t->n_targets;
        return PS_NEW(&out->targets, n * (size_t)t->n_targets, "targets");
    }
    if (p->classes && p->targets[0].categories.n > 0)
        PS_TRY(ps_class_names_copy(&p->targets[0].categories, &out->names));
    return PS_NEW(&out->labels, n, "labels");
}

/* Some lines have their answer, and it is not used. */
static ps_err doubt_answers(ps_table *t)
{
    for (int64_t k = t->n_inputs; k < t->n_inputs + t->n_targets; k++) {
        const ps_table_column *c = &t->columns[k];
        if (c->n_missing == 0 || c->n_missing == t->n) continue;
        return ps_dataset_note(&t->doubts,
                               "\"%s\" is missing in %s of %s lines, so none is "
                               "compared with its prediction: leave these lines out to "
                               "see figures",
                               c->name, PS_COUNTED(c->n_missing), PS_COUNTED(t->n));
    }
    return PS_OK;
}

static int64_t count_keys(const ps_table *t)
{
    int64_t n = 0;
    for (int64_t k = 0; k < t->n_columns; k++)
        n += t->columns[k].use == PS_COLUMN_KEY;
    return n;
}

/* The texts of the columns that data.drop names. */
static ps_err make_keys(const ps_table *t, ps_dataset *out)
{
    const int64_t first = t->n_inputs + t->n_targets, n = count_keys(t);
    if (n == 0) return PS_OK;
    PS_TRY(PS_NEW(&out->key_names.names, (size_t)n, "keys"));
    PS_TRY(PS_NEW(&out->keys.names, (size_t)(n * t->n), "keys"));
    for (int64_t k = 0; k < n; k++) {
        PS_TRY(ps_mem_strdup(&out->key_names.names[k], t->columns[first + k].name));
        out->key_names.n++;
    }
    return PS_OK;
}

static ps_err take_keys(const ps_table *t, const ps_cell *row, ps_dataset *out)
{
    const int64_t first = t->n_inputs + t->n_targets;
    for (int64_t k = 0; k < out->key_names.n; k++) {
        const char *text =
            t->columns[first + k].seen.names.names[ps_cell_text(row[first + k])];
        PS_TRY(ps_mem_strdup(&out->keys.names[out->keys.n], text));
        out->keys.n++;
    }
    return PS_OK;
}

static ps_err fill_samples(const ps_table *t, const ps_preprocessing *p, ps_dataset *out)
{
    ps_table_scan scan = {.table = t};
    for (const ps_cell *row; (row = ps_table_scan_next(&scan));) {
        if (out->answered) take_answers(t, p, row, scan.line, out);
        scan.err = take_keys(t, row, out);
    }
    return ps_table_scan_end(&scan);
}

ps_err ps_table_samples(ps_table *t, const ps_preprocessing *p, ps_dataset *out)
{
    *out = (ps_dataset){.n = t->n, .is_float = true, .preprocessing = p};
    out->dims = (ps_dims){1, {p->n_inputs}};
    ps_err err = make_answers(t, p, out);
    if (err == PS_OK) err = doubt_answers(t);
    if (err == PS_OK) err = make_keys(t, out);
    if (err == PS_OK) err = fill_samples(t, p, out);
    if (err == PS_OK) err = PS_NEW(&out->table, 1, "a table");
    if (err != PS_OK) {
        ps_dataset_fini(out);
        return err;
    }
    out->notes = t->notes;
    out->doubts = t->doubts;
    t->notes = t->doubts = NULL;
    out->columns = t->names;
    t->names = (ps_class_names){0};
    *out->table = *t;
    *t = (ps_table){.fd = -1};
    return PS_OK;
}

/* --- parts ------------------------------------------------------------------------- */

/* The text of a cell that is no number. */
static const char *cell_name(const ps_table_column *c, ps_cell cell)
{
    const ps_class_names *names = c->fitted ? &c->fitted->categories : &c->seen.names;
    return ps_class_name(names, ps_cell_text(cell));
}

ps_err ps_table_classes(const ps_table *t, const ps_wanted *wanted, uint64_t *keys)
{
    char text[PS_CELL_TEXT];
    ps_table_scan scan = {.table = t};
    if (t->n_targets != 1 || ps_wanted_numbers(wanted, 1)) return PS_OK;
    for (const ps_cell *row; (row = ps_table_scan_next(&scan));) {
        ps_hash h;
        const ps_cell cell = row[t->n_inputs];
        ps_hash_init(&h);
        ps_hash_string(&h, ps_cell_is_number(cell)
                               ? ps_cell_number_text(cell, text)
                               : cell_name(&t->columns[t->n_inputs], cell));
        keys[scan.line] = ps_hash_value(&h);
    }
    return ps_table_scan_end(&scan);
}

typedef struct ordered_line {
    double number;
    const char *text; // NULL: a number, which stands before texts
    int64_t row;
} ordered_line;

static int by_value(const void *a, const void *b)
{
    const ordered_line *x = a, *y = b;
    if (!x->text != !y->text) return x->text ? 1 : -1;
    if (x->text && strcmp(x->text, y->text) != 0) return strcmp(x->text, y->text);
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

static ps_err list_values(const ps_table *t, int64_t k, ordered_line *list)
{
    ps_table_scan scan = {.table = t};
    for (const ps_cell *row; (row = ps_table_scan_next(&scan));) {
        const bool number = ps_cell_is_number(row[k]);
        list[scan.line] =
            (ordered_line){.row = scan.line,
                           .number = number ? row[k] : 0,
                           .text = number ? NULL : cell_name(&t->columns[k], row[k])};
    }
    return ps_table_scan_end(&scan);
}

/* As 31.12.2024 and 12/31/2024: their order is not that of the days. */
static bool is_date_with_year_last(const char *text)
{
    static const char digits[] = "0123456789";
    const size_t day = strspn(text, digits);
    const char between = text[day];
    if (day < 1 || day > 2 || !between || !strchr("./-", between)) return false;
    text += day + 1;
    const size_t month = strspn(text, digits);
    if (month < 1 || month > 2 || text[month] != between) return false;
    return strspn(text + month + 1, digits) == 4;
}

static ps_err doubt_order(ps_table *t, int64_t k, const ordered_line *list)
{
    const char *text = t->n > 0 ? list[0].text : NULL;
    if (!text || !is_date_with_year_last(text)) return PS_OK;
    return ps_dataset_note(&t->doubts,
                           "data.test_by: \"%s\" is ordered as texts, such as \"%.40s\", "
                           "in which years come last: write dates as 2024-12-31",
                           t->columns[k].name, text);
}

ps_err ps_table_order(ps_table *t, int64_t *rows)
{
    ordered_line *list;
    const int64_t k = t->n_columns - 1; // the only one of its use stands last
    PS_TRY(PS_NEW(&list, (size_t)t->n, "the lines' order"));
    ps_err err = list_values(t, k, list);
    if (err == PS_OK) err = doubt_order(t, k, list);
    if (err == PS_OK) qsort(list, (size_t)t->n, sizeof *list, by_value);
    for (int64_t i = 0; i < t->n; i++)
        rows[i] = list[i].row;
    free(list);
    return err;
}
