#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mem.h"
#include "pstrain_state.h"
#include "regular_file.h"
#include "row_export.h"
#include "row_init.h"
#include "rows_body.h"

/* --- opening ----------------------------------------------------------------------- */

static ps_err rows_word(const ps_word *words, const char *text, const char *name,
                        const char *what, int *value)
{
    char list[160];
    if (text && ps_word_find(words, text, value)) return PS_OK;
    return ps_err_set(PS_ERR_ARG, "embedding table %.64s: its %s is %.40s; possible: %s",
                      name, what, text ? text : "NULL",
                      ps_word_list(words, list, sizeof list));
}

/* bytes: the size of the struct that the program knows. */
static ps_err rows_spec_of(const void *table, size_t bytes, int index, ps_row_spec *out)
{
    pstrain_rows_table whole = {0};
    const pstrain_rows_table *t = &whole;
    int rule, init, codec = PS_CODEC_NONE;
    memcpy(&whole, table, bytes < sizeof whole ? bytes : sizeof whole);
    if (!t->name || strlen(t->name) >= PS_ROW_NAME_BYTES)
        return ps_err_set(PS_ERR_ARG,
                          "embedding table %d: its name is NULL, or longer than %d bytes",
                          index, PS_ROW_NAME_BYTES - 1);
    PS_TRY(rows_word(ps_row_optimizer_words, t->optimizer, t->name, "optimizer", &rule));
    PS_TRY(rows_word(ps_row_init_words, t->init, t->name, "init", &init));
    if (t->codec)
        PS_TRY(rows_word(ps_row_codec_words, t->codec, t->name, "codec", &codec));
    *out = (ps_row_spec){.number = (uint32_t)index,
                         .dim = t->dim,
                         .optimizer = (ps_row_optimizer)rule,
                         .lr = t->lr,
                         .eps = t->eps,
                         .beta1 = t->beta1,
                         .beta2 = t->beta2,
                         .lr_decay = t->lr_decay,
                         .initial_accumulator = t->initial_accumulator,
                         .init = (ps_row_init)init,
                         .init_scale = t->scale,
                         .seed = t->seed,
                         .max_bytes = t->max_bytes,
                         .full = t->evicts ? PS_ROW_FULL_EVICT : PS_ROW_FULL_END,
                         .admit = t->admit,
                         .expire = t->expire,
                         .codec = (ps_codec)codec};
    memcpy(out->name, t->name, strlen(t->name) + 1);
    return ps_row_spec_check(out);
}

static ps_err rows_check_job(const pstrain_session *s)
{
    const char *why = NULL;
    if (s->servers == 0)
        why = "need servers (ps-server, psrun -s 1): all-reduce has none";
    else if (ps_config_two_levels(s->full))
        why = "do not go with exchange.levels 2: take 1";
    else if (s->full->loss_scale.use == PS_SWITCH_ON)
        why = "do not go with loss_scale.use on: rows are float32";
    return why ? ps_err_set(PS_ERR_CONFIG, "embedding tables %s", why) : PS_OK;
}

static ps_err rows_check_names(const ps_row_spec *rows, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(rows[i].name, rows[k].name) == 0)
                return ps_err_set(PS_ERR_ARG, "two embedding tables have the name %s",
                                  rows[i].name);
    return PS_OK;
}

ps_err pstrain_rows_declare(pstrain_session *s, const pstrain_table *t)
{
    const bool asp = s->full->rows.policy == PS_POLICY_ASP;
    if (t->n_rows == 0 && (s->full->rows.buddy || asp))
        return ps_err_set(PS_ERR_CONFIG,
                          "%s: the job has no embedding tables: leave it out",
                          asp ? "rows.policy" : "rows.buddy");
    if (t->n_rows == 0) return PS_OK;
    if (t->n_rows < 0 || t->n_rows > PS_ROW_TABLES_MAX || !t->rows ||
        t->rows_size < sizeof(char *))
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_open: %d embedding tables of %zu bytes; up to %d are "
                          "possible",
                          t->n_rows, t->rows_size, PS_ROW_TABLES_MAX);
    PS_TRY(rows_check_job(s));
    PS_TRY(PS_NEW(&s->own.rows, (size_t)t->n_rows, "embedding tables"));
    s->own.n_rows = t->n_rows;
    for (int i = 0; i < t->n_rows; i++) {
        const void *one = (const char *)t->rows + (size_t)i * t->rows_size;
        PS_TRY(rows_spec_of(one, t->rows_size, i, &s->own.rows[i]));
    }
    return rows_check_names(s->own.rows, t->n_rows);
}

int pstrain_rows_first(const pstrain_rows_table *table, size_t table_size, int index,
                       const int64_t *ids, uint64_t n, float *out)
{
    ps_row_spec spec;
    if (!table || table_size < sizeof(char *) || index < 0 || (n > 0 && (!ids || !out)))
        return ps_err_set(PS_ERR_ARG, "pstrain_rows_first: table %d, or a NULL", index);
    PS_TRY(rows_spec_of(table, table_size, index, &spec));
    for (uint64_t i = 0; i < n; i++)
        ps_row_init_fill(&spec, (uint64_t)ids[i], out + i * spec.dim);
    return PS_OK;
}

ps_err pstrain_rows_open(pstrain_session *s)
{
    const int n = s->own.n_rows;
    if (n == 0) return PS_OK;
    PS_TRY(PS_NEW(&s->lookups, (size_t)n, "embedding tables"));
    return ps_row_client_create(s->session, s->own.rows, n, &s->rows);
}

void pstrain_rows_close(pstrain_session *s)
{
    ps_row_client_destroy(&s->rows);
    free(s->lookups);
    s->lookups = NULL;
    ps_rows_points_destroy(&s->points);
    free(s->manifest);
    s->manifest = NULL;
}

/* --- calls ------------------------------------------------------------------------- */

ps_err pstrain_rows_enter(pstrain_session *s, const char *call)
{
    PS_TRY(pstrain_enter(s, PSTRAIN_LANE_MAIN, PS_IN_STARTED, call));
    if (s->rows) return PS_OK;
    pstrain_leave(s, PSTRAIN_LANE_MAIN, PS_OK);
    return ps_err_set(PS_ERR_ARG, "%s: the job was opened without embedding tables",
                      call);
}

static ps_err rows_take_lookup(const pstrain_rows_lookup *l, ps_row_lookup *out)
{
    if (l->struct_size < sizeof *l)
        return ps_err_set(PS_ERR_ARG, "a lookup of struct_size %zu", l->struct_size);
    if (l->mode < PSTRAIN_ROWS_EACH || l->mode > PSTRAIN_ROWS_MEAN)
        return ps_err_set(PS_ERR_ARG, "a lookup whose mode is not one of "
                                      "pstrain_rows_mode");
    *out =
        (ps_row_lookup){.table = l->table,
                        .bags = l->mode != PSTRAIN_ROWS_EACH,
                        .mode = l->mode == PSTRAIN_ROWS_MEAN ? PS_ROW_MEAN : PS_ROW_SUM,
                        .ids = l->ids,
                        .n_ids = l->n_ids,
                        .n_rows = l->n_rows,
                        .offsets = l->offsets,
                        .n_bags = l->n_bags,
                        .weights = l->weights,
                        .has_padding = l->has_padding != 0,
                        .padding = l->padding,
                        .out = l->out};
    return PS_OK;
}

/* ticket NULL: asks ahead. */
static ps_err rows_look_up(pstrain_session *s, const pstrain_rows_lookup *lookups, int n,
                           bool trains, uint64_t *ticket)
{
    if (!lookups || n < 1 || n > s->own.n_rows)
        return ps_err_set(PS_ERR_ARG, "%d lookups in %d tables, or a NULL", n,
                          s->own.n_rows);
    for (int i = 0; i < n; i++)
        PS_TRY(rows_take_lookup(&lookups[i], &s->lookups[i]));
    return ticket ? ps_row_client_pull(s->rows, s->lookups, n, trains, ticket)
                  : ps_row_client_prefetch(s->rows, s->lookups, n);
}

int pstrain_rows_pull(pstrain_session *s, const pstrain_rows_lookup *lookups, int n,
                      int trains, uint64_t *ticket)
{
    uint64_t unused;
    if (!ticket) ticket = &unused;
    PSTRAIN_ROWS_CALL(s, rows_look_up(s, lookups, n, trains != 0, ticket));
}

int pstrain_rows_prefetch(pstrain_session *s, const pstrain_rows_lookup *lookups, int n)
{
    PSTRAIN_ROWS_CALL(s, rows_look_up(s, lookups, n, true, NULL));
}

int pstrain_rows_forget_ahead(pstrain_session *s)
{
    const ps_err err = pstrain_rows_enter(s, "pstrain_rows_forget_ahead");
    if (err != PS_OK) return (int)err;
    ps_row_client_forget_ahead(s->rows);
    return pstrain_leave(s, PSTRAIN_LANE_MAIN, PS_OK);
}

int pstrain_rows_gradient(pstrain_session *s, uint64_t ticket, int index,
                          const float *grad, float *weights_grad)
{
    PSTRAIN_ROWS_CALL(s,
                      ps_row_client_gradient(s->rows, ticket, index, grad, weights_grad));
}

static ps_err rows_add_gradients(pstrain_session *s, uint64_t ticket, int n,
                                 const float *const *grads, float *const *weights_grads)
{
    for (int i = 0; i < n; i++)
        if (grads && grads[i])
            PS_TRY(ps_row_client_gradient(s->rows, ticket, i, grads[i],
                                          weights_grads ? weights_grads[i] : NULL));
    return grads ? PS_OK : ps_err_set(PS_ERR_ARG, "gradients of %d lookups are NULL", n);
}

int pstrain_rows_gradients(pstrain_session *s, uint64_t ticket, int n,
                           const float *const *grads, float *const *weights_grads)
{
    PSTRAIN_ROWS_CALL(s, rows_add_gradients(s, ticket, n, grads, weights_grads));
}

int pstrain_rows_forget(pstrain_session *s, uint64_t ticket)
{
    const ps_err err = pstrain_rows_enter(s, "pstrain_rows_forget");
    if (err != PS_OK) return (int)err;
    ps_row_client_forget(s->rows, ticket);
    return pstrain_leave(s, PSTRAIN_LANE_MAIN, PS_OK);
}

int pstrain_rows_drop_gradients(pstrain_session *s, int table)
{
    PSTRAIN_ROWS_CALL(s, ps_row_client_drop_gradients(s->rows, table));
}

int pstrain_rows_push(pstrain_session *s, float share, const double *lr)
{
    PSTRAIN_ROWS_CALL(s, ps_row_client_push(s->rows, share, lr));
}

uint64_t pstrain_rows_steps(const pstrain_session *s)
{
    return s && s->rows ? ps_row_client_steps(s->rows) : 0;
}

uint32_t pstrain_rows_width(const pstrain_session *s, int table)
{
    return s && s->rows ? ps_row_client_width(s->rows, table) : 0;
}

int pstrain_rows_load(pstrain_session *s, int table, const int64_t *ids, uint64_t n,
                      const float *values, int with_state, uint64_t steps)
{
    PSTRAIN_ROWS_CALL(
        s, ps_row_client_load(s->rows, table, ids, n, values, with_state != 0, steps));
}

static ps_err rows_save_page(pstrain_session *s, int table, pstrain_rows_page *page)
{
    if (!page || page->struct_size < sizeof *page)
        return ps_err_set(PS_ERR_ARG, "rows of table %d: a wrong page", table);
    ps_row_page got = {.next = page->next};
    PS_TRY(ps_row_client_save(s->rows, table, &got));
    page->next = got.next;
    page->n = got.n;
    page->ids = got.ids;
    page->values = got.values;
    page->steps = got.steps;
    page->n_candidates = got.n_candidates;
    page->ages = (const pstrain_rows_age *)(const void *)got.ages;
    page->clock = got.clock;
    return PS_OK;
}

int pstrain_rows_save(pstrain_session *s, int table, pstrain_rows_page *page)
{
    PSTRAIN_ROWS_CALL(s, rows_save_page(s, table, page));
}

_Static_assert(sizeof(pstrain_rows_age) == sizeof(ps_rows_age), "they are the same");

static ps_err rows_restore(pstrain_session *s, int table, const pstrain_rows_page *page,
                           bool first)
{
    if (!page || page->struct_size < sizeof *page)
        return ps_err_set(PS_ERR_ARG, "rows of table %d: a wrong page", table);
    const ps_row_page given = {.n = page->n,
                               .n_candidates = page->n_candidates,
                               .ids = page->ids,
                               .ages = (const ps_rows_age *)(const void *)page->ages,
                               .values = page->values,
                               .steps = page->steps,
                               .clock = page->clock};
    return ps_row_client_restore(s->rows, table, &given, first);
}

int pstrain_rows_restore(pstrain_session *s, int table, const pstrain_rows_page *page,
                         int first)
{
    PSTRAIN_ROWS_CALL(s, rows_restore(s, table, page, first != 0));
}

static ps_err rows_check_export(const pstrain_session *s, const char *path,
                                const int *tables, int n)
{
    if (!path || !tables || n < 1 || n > s->own.n_rows)
        return ps_err_set(PS_ERR_ARG, "an export of %d tables, or a NULL", n);
    for (int i = 0; i < n; i++)
        if (tables[i] < 0 || tables[i] >= s->own.n_rows)
            return ps_err_set(PS_ERR_ARG, "an export of table %d of %d", tables[i],
                              s->own.n_rows);
    return PS_OK;
}

/* Programs may let every rank export to one path: each writes a file of its own. */
static ps_err rows_export(pstrain_session *s, const char *path, const int *tables, int n,
                          const char *about)
{
    const char *metadata[] = {"pstrain.tables", about};
    char own[PATH_MAX];
    PS_TRY(rows_check_export(s, path, tables, n));
    if (snprintf(own, sizeof own, "%s.rank-%d", path, s->rank) >= (int)sizeof own)
        return ps_err_set(PS_ERR_ARG, "%s: too long a path", path);
    const ps_row_export_options o = {.path = own,
                                     .specs = s->own.rows,
                                     .tables = tables,
                                     .n = n,
                                     .metadata = metadata,
                                     .n_meta = about ? 1 : 0};
    ps_err err = ps_row_export(s->rows, &o);
    if (err == PS_OK && rename(own, path) != 0) {
        err = ps_err_errno(PS_ERR_IO, "%s", path);
        unlink(own);
    }
    if (err == PS_OK) ps_regular_file_keep_name(path);
    return err == PS_ERR_IO ? ps_err_prefix(PS_ERR_ARG, "rows are not exported") : err;
}

int pstrain_rows_export(pstrain_session *s, const char *path, const int *tables, int n,
                        const char *about)
{
    PSTRAIN_ROWS_CALL(s, rows_export(s, path, tables, n, about));
}
