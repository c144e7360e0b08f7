#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault_point.h"
#include "pstrain_state.h"

enum { DIMS_MAX = 16 };

/* --- settings ---------------------------------------------------------------------- */

/* The servers were started before anybody knew the job: their shards are as they are. */
static ps_err add_shards(pstrain_session *s)
{
    char text[48];
    if (!s->member || s->servers == 0) return PS_OK;
    snprintf(text, sizeof text, "server.shards=%d",
             ps_member_roster(s->member)->servers[0].n_endpoints);
    const char *const one[] = {text};
    return pstrain_add_settings(s, one, 1);
}

static ps_err check_shards(const pstrain_session *s)
{
    for (int i = 0; i < s->servers; i++) {
        const int n = ps_member_roster(s->member)->servers[i].n_endpoints;
        if (s->full->server.shards != n)
            return ps_err_set(PS_ERR_CONFIG,
                              "server.shards is %" PRId64 ", but server %d was started "
                              "with %d: start every ps-server with the same number, and "
                              "give the program none",
                              s->full->server.shards, i, n);
    }
    return PS_OK;
}

static void free_settings(ps_config *full)
{
    if (full) ps_config_fini(full);
    free(full);
}

/* Returns those before. */
static ps_config *swap_settings(pstrain_session *s, ps_config *full)
{
    pthread_mutex_lock(&s->lock);
    ps_config *before = s->full;
    s->full = full;
    pthread_mutex_unlock(&s->lock);
    return before;
}

ps_err pstrain_load_settings(pstrain_session *s)
{
    ps_config *full;
    PS_TRY(PS_NEW(&full, 1, "settings"));
    PS_FAULT_POINT("settings.load");
    const ps_err err =
        ps_config_load(full, NULL, (const char *const *)s->settings, s->n_settings);
    if (err != PS_OK) {
        free_settings(full);
        return err;
    }
    free_settings(swap_settings(s, full));
    if (s->full->job.workers != s->world_size || s->full->job.servers != s->servers)
        return ps_err_set(PS_ERR_CONFIG,
                          "the settings must not change job.workers or job.servers");
    return check_shards(s);
}

/* --- tensors ----------------------------------------------------------------------- */

static ps_err bad_tensor(const pstrain_tensor *t, int index, const char *what)
{
    return ps_err_set(PS_ERR_ARG, "tensor %d (%.200s): %s", index,
                      t->name ? t->name : "without a name", what);
}

/* The dimensions of ours are at most PS_MAX_DIMS: the first ones become one. */
static ps_err dims_of(const pstrain_tensor *t, int index, ps_dims *out)
{
    *out = (ps_dims){.n = t->n_dims < PS_MAX_DIMS ? t->n_dims : PS_MAX_DIMS};
    const int folded = t->n_dims - out->n; // into the first
    for (int i = 0; i < out->n; i++)
        out->d[i] = 1;
    for (int i = 0; i < t->n_dims; i++) {
        int64_t *d = &out->d[i < folded ? 0 : i - folded];
        if (t->shape[i] < 1) return bad_tensor(t, index, "a dimension below 1");
        if (__builtin_mul_overflow(*d, t->shape[i], d))
            return bad_tensor(t, index, "too many elements");
    }
    return PS_OK;
}

static ps_err table_check_tensor(const pstrain_session *s, const pstrain_tensor *t,
                                 int index)
{
    if (!t->name || !t->name[0]) return bad_tensor(t, index, "it needs a name");
    if (strlen(t->name) > 1000) return bad_tensor(t, index, "the name is too long");
    if (t->n_dims < 0 || t->n_dims > DIMS_MAX || (t->n_dims > 0 && !t->shape))
        return bad_tensor(t, index, "0 to 16 dimensions are possible");
    if (t->kind < PSTRAIN_PARAM || t->kind > PSTRAIN_BUFFER_INT64)
        return bad_tensor(t, index, "its kind is not one of pstrain_tensor_kind");
    if (t->group < 0 || t->group >= s->own.n_groups)
        return bad_tensor(t, index, "its group is not in the table");
    return PS_OK;
}

static ps_err table_add_buffer(pstrain_session *s, const pstrain_tensor *t, ps_dims dims,
                               uint64_t *offset)
{
    const ps_tensor_role role =
        t->kind == PSTRAIN_BUFFER_INT64 ? PS_TENSOR_COUNTER : PS_TENSOR_BUFFER;
    int at;
    PS_TRY(ps_tensor_table_add_buffer(&s->own.table, t->name, dims, role, &at));
    *offset = s->own.table.buffers[at].offset;
    return PS_OK;
}

static ps_err table_add_tensor(pstrain_session *s, const pstrain_tensor *t, int index)
{
    ps_dims dims;
    int at;
    PS_TRY(table_check_tensor(s, t, index));
    PS_TRY(dims_of(t, index, &dims));
    if (t->kind != PSTRAIN_PARAM) return table_add_buffer(s, t, dims, &s->offsets[index]);
    PS_TRY(ps_tensor_table_add(&s->own.table, t->name, dims, PS_TENSOR_WEIGHT, 1, &at));
    s->own.table.tensors[at].group = t->group;
    s->offsets[index] = s->own.table.tensors[at].offset;
    return PS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static ps_err check_names(const ps_tensor_table *t)
{
    const int n = t->n_tensors + t->n_buffers;
    const char **names;
    ps_err err = PS_OK;
    PS_TRY(PS_NEW(&names, (size_t)n, "names"));
    for (int i = 0; i < t->n_tensors; i++)
        names[i] = t->tensors[i].name;
    for (int i = 0; i < t->n_buffers; i++)
        names[t->n_tensors + i] = t->buffers[i].name;
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int i = 1; i < n && err == PS_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            err = ps_err_set(PS_ERR_ARG, "two tensors have the name %.200s", names[i]);
    free(names);
    return err;
}

/* Embedding tables alone: the plan needs a chunk for each shard, which nobody steps. */
static ps_err table_add_place(pstrain_session *s)
{
    const int64_t shards = s->full->job.servers * s->full->server.shards;
    const ps_dims dims = {.n = 2, .d = {shards, PS_GRADNORM_BLOCK}};
    int at;
    return ps_tensor_table_add(&s->own.table, "(embedding tables)", dims,
                               PS_TENSOR_WEIGHT, 1, &at);
}

static ps_err add_tensors(pstrain_session *s, const pstrain_table *t)
{
    const size_t room =
        t->tensor_size < sizeof(pstrain_tensor) ? t->tensor_size : sizeof(pstrain_tensor);
    PS_TRY(PS_NEW(&s->offsets, (size_t)t->n_tensors, "a table of tensors"));
    for (int i = 0; i < t->n_tensors; i++) {
        pstrain_tensor one = {0};
        memcpy(&one, (const char *)t->tensors + (size_t)i * t->tensor_size, room);
        PS_TRY(table_add_tensor(s, &one, i));
    }
    s->n_entries = t->n_tensors;
    if (t->n_tensors == 0) PS_TRY(table_add_place(s));
    if (s->own.table.n_tensors == 0)
        return ps_err_set(PS_ERR_ARG, "the table has no parameter");
    return check_names(&s->own.table);
}

/* --- groups ------------------------------------------------------------------------ */

ps_err pstrain_numbers_of(const pstrain_session *s, const pstrain_group *g,
                          ps_group_numbers *out)
{
    ps_optimizer base;
    int kind;
    ps_optimizer_init(&base, s->full);
    *out = ps_param_groups_numbers(&base);
    out->lr = g->lr;
    out->momentum = g->momentum;
    out->dampening = g->dampening;
    out->beta1 = g->beta1;
    out->beta2 = g->beta2;
    out->eps = g->eps;
    out->weight_decay = g->weight_decay;
    out->nesterov = g->nesterov != 0;
    out->owner = g->optimizer;
    if (!g->name) return PS_OK;
    if (!ps_word_find(ps_optimizer_words, g->name, &kind))
        return ps_err_set(PS_ERR_ARG, "a parameter group's optimizer is called %.40s",
                          g->name);
    out->kind = kind;
    out->lr_decay = g->lr_decay;
    out->initial_accumulator = g->initial_accumulator;
    out->centered = g->centered != 0;
    return PS_OK;
}

static ps_err table_take_numbers(pstrain_session *s, const pstrain_table *t)
{
    const size_t room =
        t->group_size < sizeof(pstrain_group) ? t->group_size : sizeof(pstrain_group);
    PS_TRY(PS_NEW(&s->own.numbers, (size_t)t->n_groups, "parameter groups"));
    for (int i = 0; i < t->n_groups; i++) {
        pstrain_group one = {0};
        memcpy(&one, (const char *)t->groups + (size_t)i * t->group_size, room);
        PS_TRY(pstrain_numbers_of(s, &one, &s->own.numbers[i]));
        s->numbers[i] = s->own.numbers[i];
        if (one.optimizer >= s->n_optimizers) s->n_optimizers = one.optimizer + 1;
    }
    s->has_numbers = s->new_numbers = true;
    return PS_OK;
}

/* After the settings. */
static ps_err table_take_groups(pstrain_session *s, const pstrain_table *t)
{
    s->n_optimizers = 1;
    s->own.n_groups = t->n_groups ? t->n_groups : 1;
    PS_TRY(ps_param_groups_init(&s->groups, s->own.n_groups));
    PS_TRY(PS_NEW(&s->numbers, (size_t)s->own.n_groups, "parameter groups"));
    return t->n_groups > 0 ? table_take_numbers(s, t) : PS_OK;
}

static ps_err table_open_groups(pstrain_session *s)
{
    ps_optimizer base;
    ps_optimizer_init(&base, s->full);
    ps_open_job_set_owners(&s->own);
    return ps_param_groups_open(&s->groups, &base, s->own.numbers);
}

static ps_err take_mean(pstrain_session *s, const pstrain_table *t)
{
    s->own.mean = t->mean != 0;
    if (!s->own.mean) return PS_OK;
    if (s->full->exchange.codec != PS_CODEC_NONE)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_open: mean needs exchange.codec none; with a "
                          "codec each worker divides its own gradients");
    if (s->full->job.servers > 0 || s->full->job.workers == 1) return PS_OK;
    return ps_err_set(PS_ERR_ARG, "pstrain_open: mean needs servers");
}

/* --- agreeing ---------------------------------------------------------------------- */

static ps_err compare_with_worker_0(pstrain_session *s)
{
    ps_open_job of_0;
    bool found;
    PS_TRY(ps_open_job_get(s->member, ps_config_join_deadline(pstrain_config(s)), &of_0,
                           &found));
    if (!found)
        return ps_err_set(PS_ERR_TIMEOUT,
                          "worker 0 has not opened its session within %" PRId64
                          " ms (net.join_timeout_ms)",
                          s->full->net.join_timeout_ms);
    const ps_err err = ps_open_job_compare(&of_0, &s->own, s->rank);
    ps_open_job_fini(&of_0);
    return err;
}

/* The others wait for everybody's consent in the barrier, and learn the reason there. */
static ps_err table_agree(pstrain_session *s)
{
    if (!s->member) return PS_OK;
    const ps_err err = s->rank == 0
                           ? ps_open_job_put(s->member, &s->own,
                                             ps_config_join_deadline(pstrain_config(s)))
                           : compare_with_worker_0(s);
    if (err == PS_ERR_PEER && ps_member_check(s->member) == PS_OK) {
        const ps_err_saved why = ps_err_save(err);
        ps_member_abort(s->member, PS_ERR_CONFIG, why.message);
        return ps_err_restore(&why);
    }
    if (err != PS_OK) return err;
    return ps_member_barrier(s->member, "open",
                             ps_config_join_deadline(pstrain_config(s)));
}

/* What a job that goes on has skipped before, and with which scale it goes on. */
static ps_err take_loss_scale(pstrain_session *s, const ps_job_start *start)
{
    ps_step_rule rule;
    PS_TRY(ps_step_rule_init(&rule, s->full));
    PS_TRY(ps_job_start_rule(start, s->full, &rule));
    s->skipped = rule.scale.skipped;
    s->scale = rule.scale.scale;
    return PS_OK;
}

static ps_err table_set_start(pstrain_session *s, uint64_t total_steps,
                              const pstrain_state *resume)
{
    ps_job_start start = {.total_steps = total_steps ? total_steps : PS_STEPS_UNKNOWN};
    if (resume) {
        start.step = resume->step;
        start.rule_bytes = resume->rule_bytes;
        memcpy(start.rule, resume->rule, sizeof start.rule);
    }
    const ps_deadline deadline = ps_config_join_deadline(pstrain_config(s));
    if (s->member && s->rank == 0)
        PS_TRY(ps_job_start_put(s->member, &start, deadline));
    else if (s->member)
        PS_TRY(ps_job_start_get(s->member, &start, deadline));
    s->step = start.step;
    PS_TRY(ps_session_set_start(s->session, &start));
    return take_loss_scale(s, &start);
}

/* The settings that the others get, as a list of its own. */
static ps_err copy_settings(pstrain_session *s)
{
    PS_TRY(PS_NEW(&s->own.settings, (size_t)s->n_settings, "settings"));
    for (int i = 0; i < s->n_settings; i++, s->own.n_settings++)
        PS_TRY(ps_mem_strdup(&s->own.settings[i], s->settings[i]));
    return PS_OK;
}

ps_err pstrain_agree(pstrain_session *s, uint64_t total_steps,
                     const pstrain_state *resume)
{
    const ps_session_options options = {.config = s->full,
                                        .table = &s->own.table,
                                        .init_method = s->init_method,
                                        .rank = s->rank,
                                        .local_rank = -1,
                                        .member = s->member,
                                        .life = &s->life,
                                        .groups = &s->groups,
                                        .rows = s->own.n_rows > 0};
    s->own.table.optional = ps_config_may_lack_gradients(s->full);
    PS_TRY(copy_settings(s));
    PS_TRY(table_open_groups(s));
    PS_TRY(ps_session_create(&options, &s->session));
    s->own.plan_hash = ps_session_plan(s->session)->hash;
    PS_TRY(table_agree(s));
    return table_set_start(s, total_steps, resume);
}

/* --- open -------------------------------------------------------------------------- */

static bool table_has_rows(const pstrain_table *t)
{
    return t->struct_size >= sizeof *t && t->n_rows > 0;
}

static ps_err check_table(const pstrain_table *t)
{
    if (!t) return ps_err_set(PS_ERR_ARG, "pstrain_open: the table is NULL");
    if (t->struct_size < offsetof(pstrain_table, resume) ||
        t->n_tensors < (table_has_rows(t) ? 0 : 1) || (t->n_tensors > 0 && !t->tensors) ||
        (t->n_tensors > 0 && t->tensor_size < sizeof(char *)) || t->n_groups < 0 ||
        t->n_groups > PS_MAX_GROUPS || t->n_settings < 0 ||
        (t->n_groups > 0 && (!t->groups || t->group_size < sizeof(double))))
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_open: a size or number of the table is wrong "
                          "(struct_size %zu, %d tensors of %zu bytes, %d groups of %zu)",
                          t->struct_size, t->n_tensors, t->tensor_size, t->n_groups,
                          t->group_size);
    return PS_OK;
}

static ps_err open_tensors(pstrain_session *s, const pstrain_table *t)
{
    PS_TRY(add_shards(s));
    PS_TRY(pstrain_add_settings(s, t->settings, t->n_settings));
    PS_TRY(pstrain_load_settings(s));
    PS_TRY(table_take_groups(s, t));
    PS_TRY(take_mean(s, t));
    PS_TRY(pstrain_rows_declare(s, t));
    PS_TRY(add_tensors(s, t));
    PS_TRY(pstrain_agree(s, t->total_steps, t->resume));
    PS_TRY(pstrain_rows_open(s));
    s->resume = t->resume;
    return PS_OK;
}

/* What is wrong with the arguments leaves a session half opened, so it counts as a
 * failure. */
static ps_err table_open_once(pstrain_session *s, const pstrain_table *given)
{
    pstrain_table t = {0};
    PS_TRY(check_table(given));
    memcpy(&t, given, given->struct_size < sizeof t ? given->struct_size : sizeof t);
    const ps_err err = open_tensors(s, &t);
    return err == PS_ERR_ARG ? PS_ERR_CONFIG : err;
}

void pstrain_forget_table(pstrain_session *s)
{
    ps_session_destroy(&s->session);
    pstrain_rows_close(s); // the session's thread may have been writing there
    ps_open_job_fini(&s->own);
    ps_param_groups_fini(&s->groups);
    while (s->n_settings > s->n_own_settings)
        free(s->settings[--s->n_settings]);
    free(s->numbers);
    free(s->offsets);
    free_settings(swap_settings(s, NULL));
    s->numbers = NULL;
    s->offsets = NULL;
    s->has_numbers = s->new_numbers = false;
}

int pstrain_open(pstrain_session *s, const pstrain_table *table)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_MAIN, PS_IN_JOINED, table_open_once(s, table));
}

/* --- what it has ------------------------------------------------------------------- */

static bool is_open(const pstrain_session *s)
{
    return s && !s->reduces && s->session && ps_life_stage(&s->life) >= PS_STAGE_OPEN;
}

float *pstrain_params(const pstrain_session *s)
{
    return is_open(s) ? ps_session_params(s->session) : NULL;
}

float *pstrain_grads(const pstrain_session *s)
{
    return is_open(s) ? ps_session_grads(s->session) : NULL;
}

void *pstrain_buffers(const pstrain_session *s)
{
    return is_open(s) ? ps_session_buffers(s->session) : NULL;
}

uint64_t pstrain_arena_count(const pstrain_session *s)
{
    return is_open(s) ? s->own.table.arena_count : 0;
}

uint64_t pstrain_buffer_bytes(const pstrain_session *s)
{
    return is_open(s) ? s->own.table.buffer_bytes : 0;
}

uint64_t pstrain_tensor_offset(const pstrain_session *s, int index)
{
    return is_open(s) && index >= 0 && index < s->n_entries ? s->offsets[index]
                                                            : UINT64_MAX;
}

/* --- start ------------------------------------------------------------------------- */

static void give_missed(const ps_tensor_table *table, const uint64_t *missed,
                        float *arena)
{
    for (int i = 0; i < table->n_tensors; i++) {
        const uint32_t n = (uint32_t)missed[i];
        for (uint64_t k = 0; k < table->tensors[i].count; k++)
            memcpy(arena + table->tensors[i].offset + k, &n, sizeof n);
    }
}

static ps_err table_start(pstrain_session *s)
{
    const pstrain_state *r = s->resume;
    ps_exchange_state state = {0};
    const bool resumes = s->step > 0; // on every rank: loading is collective
    if (r) {
        for (int i = 0; i < PS_OPTIMIZER_MAX_STATES; i++)
            state.states[i] = r->arrays[i];
        state.weights = r->weights;
        state.feedback = r->feedback;
    }
    if (resumes) PS_TRY(pstrain_missed_room(s, &state));
    if (state.missed && r && r->struct_size >= sizeof *r && r->missed)
        give_missed(&s->own.table, r->missed, state.missed);
    const ps_err err = ps_session_start(s->session, NULL, resumes ? &state : NULL);
    free(state.missed);
    PS_TRY(err);
    s->resume = NULL;
    return PS_OK;
}

int pstrain_start(pstrain_session *s)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_MAIN, PS_IN_OPEN, table_start(s));
}
