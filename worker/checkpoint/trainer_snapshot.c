#include "trainer_snapshot.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

enum { MAX_RANKS = 1 << 16 };

typedef enum kind { WHOLE, REAL } kind;

#define FIELD(what, name)                                                                \
    {                                                                                    \
#name, what, offsetof(ps_trainer_snapshot, name)                                 \
    }
static const struct {
    const char *name;
    kind kind;
    size_t offset;
} fields[] = {
    FIELD(WHOLE, step),
    FIELD(WHOLE, epoch),
    FIELD(WHOLE, position),
    FIELD(WHOLE, samples),
    FIELD(WHOLE, skipped_steps),
    FIELD(REAL, seconds),
    FIELD(REAL, epoch_loss_sum),
    FIELD(REAL, epoch_samples),
    FIELD(REAL, epoch_correct),
    FIELD(REAL, epoch_counted),
    FIELD(REAL, step_loss),
    FIELD(WHOLE, window_steps),
    FIELD(WHOLE, window_samples),
    FIELD(REAL, window_seconds),
    FIELD(REAL, window_wait_seconds),
    FIELD(WHOLE, metrics_bytes),
    FIELD(REAL, best),
    FIELD(WHOLE, best_epoch),
    FIELD(REAL, patience_best),
    FIELD(WHOLE, patience_in_row),
    FIELD(REAL, plateau_best),
    FIELD(WHOLE, plateau_bad),
    FIELD(WHOLE, plateau_cooldown),
    FIELD(WHOLE, plateau_cuts),
    FIELD(WHOLE, version),
    FIELD(WHOLE, train_samples),
    FIELD(WHOLE, train_mark),
    FIELD(WHOLE, test_samples),
    FIELD(WHOLE, test_mark),
    FIELD(WHOLE, rows_point),
};
/* One number for each rank. */
static const struct {
    const char *name;
    size_t offset;
} lists[] = {{"loss_sums", offsetof(ps_trainer_snapshot, loss_sums)},
             {"loss_samples", offsetof(ps_trainer_snapshot, loss_samples)},
             {"correct", offsetof(ps_trainer_snapshot, correct)},
             {"counted", offsetof(ps_trainer_snapshot, counted)},
             {"own_steps", offsetof(ps_trainer_snapshot, own_steps)},
             {"batches", offsetof(ps_trainer_snapshot, batches)}};

/* The first ones say where the job stands: those a state has to have. */
enum {
    N_FIELDS = sizeof fields / sizeof *fields,
    N_LISTS = sizeof lists / sizeof *lists,
    N_NEEDED = 3
};

static double **list_of(const ps_trainer_snapshot *s, int i)
{
    return (double **)((char *)s + lists[i].offset);
}

ps_err ps_trainer_snapshot_init(ps_trainer_snapshot *s, int n_ranks)
{
    *s = (ps_trainer_snapshot){.n_ranks = n_ranks,
                               .step_loss = NAN,
                               .best = NAN,
                               .patience_best = NAN,
                               .plateau_best = NAN};
    const size_t n = (size_t)n_ranks;
    for (int i = 0; i < N_LISTS; i++)
        PS_TRY(ps_mem_zalloc(list_of(s, i), n, sizeof(double), "the loss"));
    return PS_OK;
}

void ps_trainer_snapshot_fini(ps_trainer_snapshot *s)
{
    for (int i = 0; i < N_LISTS; i++)
        free(*list_of(s, i));
    *s = (ps_trainer_snapshot){0};
}

ps_err ps_trainer_snapshot_copy(ps_trainer_snapshot *out, const ps_trainer_snapshot *s)
{
    PS_TRY(ps_trainer_snapshot_init(out, s->n_ranks));
    const ps_trainer_snapshot own = *out;
    *out = *s;
    for (int i = 0; i < N_LISTS; i++) {
        *list_of(out, i) = *list_of(&own, i);
        memcpy(*list_of(out, i), *list_of(s, i), (size_t)s->n_ranks * sizeof(double));
    }
    return PS_OK;
}

/* JSON has no word for what is not finite: a text that strtod reads. */
static json_t *real_json(double v)
{
    char text[32];
    if (isfinite(v)) return json_real(v);
    snprintf(text, sizeof text, "%f", v);
    return json_string(text);
}

static bool read_real(const json_t *value, double *out)
{
    char *end = NULL;
    *out = json_is_number(value) ? json_number_value(value) : 0;
    if (json_is_number(value)) return true;
    if (!json_is_string(value)) return false;
    *out = strtod(json_string_value(value), &end);
    return *end == '\0' && !isfinite(*out);
}

static json_t *reals_json(const double *v, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, real_json(v[i]));
    return list;
}

ps_err ps_trainer_snapshot_to_json(const ps_trainer_snapshot *s, json_t **out)
{
    json_t *o = json_object();
    for (int i = 0; i < N_FIELDS; i++) {
        const void *at = (const char *)s + fields[i].offset;
        json_object_set_new(o, fields[i].name,
                            fields[i].kind == WHOLE ? json_integer(*(const int64_t *)at)
                                                    : real_json(*(const double *)at));
    }
    bool good = true;
    for (int i = 0; i < N_LISTS; i++)
        good = json_object_set_new(o, lists[i].name,
                                   reals_json(*list_of(s, i), s->n_ranks)) == 0 &&
               good;
    *out = o;
    if (good) return PS_OK;
    json_decref(o);
    return ps_err_set(PS_ERR_NOMEM, "no memory for the state of training");
}

static bool trainer_snapshot_read_field(const json_t *json, int i, ps_trainer_snapshot *s)
{
    void *at = (char *)s + fields[i].offset;
    const json_t *value = json_object_get(json, fields[i].name);
    if (!value && i >= N_NEEDED) return true;
    if (fields[i].kind == REAL) return read_real(value, at);
    *(int64_t *)at = json_integer_value(value);
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static bool read_reals(const json_t *list, double *out, int n)
{
    if (!list) return true;
    bool good = (int)json_array_size(list) == n;
    for (int i = 0; i < n && good; i++)
        good = read_real(json_array_get(list, (size_t)i), &out[i]);
    return good;
}

ps_err ps_trainer_snapshot_from_json(const json_t *json, ps_trainer_snapshot *s)
{
    const json_t *sums = json_object_get(json, "loss_sums");
    const size_t n = sums ? json_array_size(sums) : 1;
    *s = (ps_trainer_snapshot){0};
    if (n < 1 || n > MAX_RANKS)
        return ps_err_set(PS_ERR_FORMAT, "loss_sums is not one number for each worker");
    PS_TRY(ps_trainer_snapshot_init(s, (int)n));
    for (int i = 0; i < N_FIELDS; i++)
        if (!trainer_snapshot_read_field(json, i, s))
            return ps_err_set(PS_ERR_FORMAT, "%s is missing, or of another kind",
                              fields[i].name);
    for (int i = 0; i < N_LISTS; i++)
        if (!read_reals(json_object_get(json, lists[i].name), *list_of(s, i), (int)n))
            return ps_err_set(PS_ERR_FORMAT, "loss_sums and %s do not fit",
                              lists[i].name);
    return PS_OK;
}

size_t ps_trainer_snapshot_n_values(int n_ranks)
{
    return N_FIELDS + N_LISTS * (size_t)n_ranks;
}

void ps_trainer_snapshot_to_values(const ps_trainer_snapshot *s, double *values)
{
    const size_t bytes = (size_t)s->n_ranks * sizeof *values;
    for (int i = 0; i < N_FIELDS; i++) {
        const void *at = (const char *)s + fields[i].offset;
        values[i] =
            fields[i].kind == WHOLE ? (double)*(const int64_t *)at : *(const double *)at;
    }
    for (int i = 0; i < N_LISTS; i++)
        memcpy(values + N_FIELDS + i * s->n_ranks, *list_of(s, i), bytes);
}

void ps_trainer_snapshot_from_values(const double *values, ps_trainer_snapshot *s)
{
    const size_t bytes = (size_t)s->n_ranks * sizeof *values;
    for (int i = 0; i < N_FIELDS; i++) {
        void *at = (char *)s + fields[i].offset;
        if (fields[i].kind == WHOLE)
            *(int64_t *)at = (int64_t)values[i];
        else
            *(double *)at = values[i];
    }
    for (int i = 0; i < N_LISTS; i++)
        memcpy(*list_of(s, i), values + N_FIELDS + i * s->n_ranks, bytes);
}

double ps_trainer_snapshot_share(const ps_trainer_snapshot *s, const double *sums,
                                 int rank, int world_size)
{
    double sum = 0;
    if (s->n_ranks == world_size) return sums[rank];
    for (int r = 0; r < s->n_ranks && rank == 0; r++)
        sum += sums[r];
    return sum;
}
