#include "preprocessing.h"

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "mem.h"
#include "model_file.h"
#include "parse_text.h"

enum { MOST_INPUTS = 1 << 24, JSON_DIGITS = 17 };

static void column_fini(ps_column *c)
{
    free(c->name);
    free(c->shares);
    ps_class_names_fini(&c->categories);
    *c = (ps_column){0};
}

void ps_preprocessing_destroy(ps_preprocessing **out)
{
    ps_preprocessing *p = *out;
    if (!p) return;
    *out = NULL;
    for (int64_t i = 0; i < p->n_columns; i++)
        column_fini(&p->columns[i]);
    for (int64_t i = 0; i < p->n_targets; i++)
        column_fini(&p->targets[i]);
    free(p->columns);
    free(p->targets);
    free(p);
}

static int64_t column_inputs(const ps_column *c)
{
    if (c->embedded) return 1;
    return (c->categories.n > 0 ? c->categories.n : 1) + c->own;
}

int ps_preprocessing_embedded(const ps_preprocessing *p, int64_t *rows)
{
    int n = 0;
    for (int64_t i = 0; i < p->n_columns; i++) {
        const ps_column *c = &p->columns[i];
        if (c->embedded && rows) rows[n] = c->categories.n + c->own;
        n += c->embedded;
    }
    return n;
}

void ps_preprocessing_count(ps_preprocessing *p)
{
    p->n_inputs = 0;
    for (int64_t i = 0; i < p->n_columns; i++)
        p->n_inputs += column_inputs(&p->columns[i]);
}

/* --- as text ----------------------------------------------------------------------- */

/* NULL without memory. */
static json_t *column_json(const ps_column *c)
{
    json_t *categories = json_array(), *shares = json_array();
    for (int64_t k = 0; k < c->categories.n; k++) {
        json_array_append_new(categories, json_string(c->categories.names[k]));
        json_array_append_new(shares, json_real(c->shares[k]));
    }
    return json_pack("{s:s, s:f, s:f, s:f, s:o, s:o, s:b, s:b}", "name", c->name, "mean",
                     c->mean, "std", c->std, "fill", c->fill, "categories", categories,
                     "shares", shares, "own", (int)c->own, "embedded", (int)c->embedded);
}

static json_t *columns_json(const ps_column *columns, int64_t n)
{
    json_t *out = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(out, column_json(&columns[i]));
    return out;
}

ps_err ps_preprocessing_text(const ps_preprocessing *p, char **out)
{
    json_t *root =
        json_pack("{s:b, s:b, s:o, s:o}", "named", (int)p->named, "classes",
                  (int)p->classes, "columns", columns_json(p->columns, p->n_columns),
                  "targets", columns_json(p->targets, p->n_targets));
    *out = root ? json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS |
                                       JSON_REAL_PRECISION(JSON_DIGITS))
                : NULL;
    json_decref(root);
    return *out ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for the preprocessing");
}

/* --- back -------------------------------------------------------------------------- */

static ps_err bad_text(const char *where, const char *what)
{
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: its preprocessing is damaged: %s; take the file as the run "
                      "has left it",
                      where, what);
}

static ps_err take_categories(const char *where, const json_t *names,
                              const json_t *shares, ps_column *c)
{
    const size_t n = json_array_size(names);
    if (!json_is_array(names) || json_array_size(shares) != n || n > MOST_INPUTS)
        return bad_text(where, "categories and shares differ");
    PS_TRY(PS_NEW(&c->categories.names, n, where));
    PS_TRY(PS_NEW(&c->shares, n, where));
    for (size_t k = 0; k < n; k++) {
        const char *name = json_string_value(json_array_get(names, k));
        if (!name) return bad_text(where, "a category is no text");
        PS_TRY(ps_mem_strdup(&c->categories.names[k], name));
        c->categories.n++;
        c->shares[k] = json_number_value(json_array_get(shares, k));
    }
    return PS_OK;
}

static ps_err take_column(const char *where, const json_t *json, ps_column *c)
{
    const char *name = json_string_value(json_object_get(json, "name"));
    if (!name) return bad_text(where, "a column has no name");
    PS_TRY(ps_mem_strdup(&c->name, name));
    c->mean = json_number_value(json_object_get(json, "mean"));
    c->std = json_number_value(json_object_get(json, "std"));
    c->fill = json_number_value(json_object_get(json, "fill"));
    c->own = json_is_true(json_object_get(json, "own"));
    c->embedded = json_is_true(json_object_get(json, "embedded"));
    if (!(c->std > 0)) return bad_text(where, "a column has no deviation");
    PS_TRY(take_categories(where, json_object_get(json, "categories"),
                           json_object_get(json, "shares"), c));
    return c->embedded && c->categories.n == 0
               ? bad_text(where, "an embedded column has no categories")
               : PS_OK;
}

static ps_err take_columns(const char *where, const json_t *list, ps_column **out,
                           int64_t *n)
{
    if (!json_is_array(list)) return bad_text(where, "it has no columns");
    PS_TRY(PS_NEW(out, json_array_size(list), where));
    for (size_t i = 0; i < json_array_size(list); i++) {
        *n = (int64_t)i + 1; // counted first: what it has is freed in any case
        PS_TRY(take_column(where, json_array_get(list, i), &(*out)[i]));
    }
    return PS_OK;
}

ps_err ps_preprocessing_parse(const char *where, const char *text, ps_preprocessing **out)
{
    json_error_t error;
    ps_preprocessing *p;
    *out = NULL;
    json_t *root = json_loads(text, 0, &error);
    if (!root) return bad_text(where, error.text);
    ps_err err = PS_NEW(&p, 1, where);
    if (err == PS_OK) {
        p->named = json_is_true(json_object_get(root, "named"));
        p->classes = json_is_true(json_object_get(root, "classes"));
        err = take_columns(where, json_object_get(root, "columns"), &p->columns,
                           &p->n_columns);
        if (err == PS_OK)
            err = take_columns(where, json_object_get(root, "targets"), &p->targets,
                               &p->n_targets);
        ps_preprocessing_count(p);
        if (err == PS_OK && (p->n_inputs < 1 || p->n_inputs > MOST_INPUTS))
            err = bad_text(where, "it has no inputs, or too many");
        if (err == PS_OK && p->classes && p->n_targets != 1)
            err = bad_text(where, "classes are of one target");
        if (err != PS_OK) ps_preprocessing_destroy(&p);
    }
    json_decref(root);
    if (err == PS_OK) *out = p;
    return err;
}

ps_err ps_preprocessing_load(const char *weights, ps_preprocessing **out)
{
    char *text = NULL;
    *out = NULL;
    PS_TRY(ps_st_read_metadata(weights, PS_PREPROCESSING_KEY, &text));
    const ps_err err = text ? ps_preprocessing_parse(weights, text, out) : PS_OK;
    free(text);
    return err;
}

/* --- what goes in ------------------------------------------------------------------ */

const char *ps_cell_number_text(double number, char out[PS_CELL_TEXT])
{
    snprintf(out, PS_CELL_TEXT, "%.15g", number);
    return out;
}

int ps_category_order(const char *a, const char *b)
{
    double x, y;
    const bool first = ps_parse_double(a, &x), second = ps_parse_double(b, &y);
    if (first != second) return first ? -1 : 1;
    if (first && x != y) return x < y ? -1 : 1;
    return strcmp(a, b);
}

int64_t ps_column_find(const ps_column *c, const char *text)
{
    int64_t low = 0, high = c->categories.n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const int order = ps_category_order(c->categories.names[middle], text);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return c->categories.n;
}

static float *category_row(const ps_column *c, ps_cell cell, float *out)
{
    const bool missing = ps_cell_is_missing(cell);
    for (int64_t k = 0; k < c->categories.n; k++)
        *out++ = missing ? (c->own ? 0 : (float)c->shares[k]) : ps_cell_text(cell) == k;
    return out;
}

/* The number of an embedded column's cell. */
static float category_id(const ps_column *c, ps_cell cell)
{
    const int64_t n = c->categories.n, text = ps_cell_text(cell);
    if (ps_cell_is_missing(cell)) return (float)n; // without a row of its own: unknown
    return (float)(text < n ? text : n + c->own);
}

void ps_preprocessing_row(const ps_preprocessing *p, const ps_cell *cells, float *out)
{
    float *ids = out + p->n_inputs - ps_preprocessing_embedded(p, NULL);
    for (int64_t i = 0; i < p->n_columns; i++) {
        const ps_column *c = &p->columns[i];
        const ps_cell cell = cells[i];
        if (c->embedded) {
            *ids++ = category_id(c, cell);
            continue;
        }
        if (c->categories.n > 0)
            out = category_row(c, cell, out);
        else
            *out++ =
                (float)(((ps_cell_is_number(cell) ? cell : c->fill) - c->mean) / c->std);
        if (c->own) *out++ = ps_cell_is_missing(cell);
    }
}

/* --- what comes out ---------------------------------------------------------------- */

bool ps_preprocessing_scales(const ps_preprocessing *p, int64_t outputs)
{
    return p && !p->classes && p->n_targets == outputs;
}

double ps_preprocessing_number(const ps_preprocessing *p, int64_t i, float value)
{
    return value * p->targets[i].std + p->targets[i].mean;
}

int ps_preprocessing_digits(const ps_preprocessing *p, int64_t i)
{
    const double more = log10(fabs(p->targets[i].mean) / p->targets[i].std);
    return more > 1 ? (int)fmin(FLT_DECIMAL_DIG + more, DBL_DECIMAL_DIG)
                    : FLT_DECIMAL_DIG;
}

double ps_preprocessing_unit(const ps_preprocessing *p, int64_t output)
{
    return p && output < p->n_targets ? p->targets[output].std : 1;
}
