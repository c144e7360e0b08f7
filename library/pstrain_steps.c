#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "absent.h"
#include "fault_point.h"
#include "memory_sum.h"
#include "nontemporal_copy.h"
#include "pstrain_device.h"
#include "pstrain_state.h"

/* As pstrain_enter, of a started session with tensors, in the main lane. */
static ps_err steps_enter_beside(pstrain_session *s, const char *call)
{
    PS_TRY(pstrain_enter(s, PSTRAIN_LANE_MAIN, PS_IN_STARTED, call));
    if (!s->reduces) return PS_OK;
    pstrain_leave(s, PSTRAIN_LANE_MAIN, PS_OK);
    return ps_err_set(PS_ERR_ARG, "%s: a reducer session has no steps", call);
}

/* The same once a device's copies of the step are asked for. */
static ps_err steps_enter(pstrain_session *s, const char *call)
{
    PS_TRY(steps_enter_beside(s, call));
    const ps_err err = pstrain_device_settle(s);
    if (err != PS_OK) pstrain_leave(s, PSTRAIN_LANE_MAIN, err);
    return err;
}

static ps_err steps_check_host(const pstrain_session *s, const char *call)
{
    if (!s->device) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "%s: the parameters are on a GPU (pstrain_device_push, "
                      "pstrain_device_wait)",
                      call);
}

#define STEPS_CALL(s, work)                                                              \
    PSTRAIN_RETURN(steps_enter(s, __func__), pstrain_leave(s, PSTRAIN_LANE_MAIN, work))

/* --- groups ------------------------------------------------------------------------ */

static ps_err set_numbers(pstrain_session *s, const ps_group_numbers *numbers)
{
    const size_t bytes = (size_t)s->groups.n * sizeof *numbers;
    for (int i = 0; i < s->groups.n; i++)
        if (ps_param_groups_check(&s->groups, &numbers[i], i) != PS_OK)
            return ps_err_set(PS_ERR_ARG, "%s", ps_err_message());
    if (s->has_numbers && memcmp(s->numbers, numbers, bytes) == 0) return PS_OK;
    memcpy(s->numbers, numbers, bytes);
    s->has_numbers = s->new_numbers = true;
    return PS_OK;
}

static ps_err set_groups(pstrain_session *s, const pstrain_group *groups, int n,
                         size_t group_size)
{
    ps_group_numbers *numbers;
    if (n != s->groups.n || !groups || group_size < sizeof(double))
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_set_groups: %d groups of %zu bytes; the table has %d",
                          n, group_size, s->groups.n);
    const size_t room =
        group_size < sizeof(pstrain_group) ? group_size : sizeof(pstrain_group);
    PS_TRY(PS_NEW(&numbers, (size_t)n, "parameter groups"));
    ps_err err = PS_OK;
    for (int i = 0; i < n && err == PS_OK; i++) {
        pstrain_group g = {0};
        memcpy(&g, (const char *)groups + (size_t)i * group_size, room);
        err = pstrain_numbers_of(s, &g, &numbers[i]);
    }
    if (err == PS_OK) err = set_numbers(s, numbers);
    free(numbers);
    return err;
}

int pstrain_set_groups(pstrain_session *s, const pstrain_group *groups, int n,
                       size_t group_size)
{
    STEPS_CALL(s, set_groups(s, groups, n, group_size));
}

static ps_err set_lr(pstrain_session *s, double lr)
{
    ps_group_numbers *numbers;
    const ps_group_numbers own =
        ps_param_groups_numbers(ps_session_optimizer(s->session));
    PS_TRY(PS_NEW(&numbers, (size_t)s->groups.n, "parameter groups"));
    for (int i = 0; i < s->groups.n; i++) {
        numbers[i] = s->has_numbers ? s->numbers[i] : own;
        numbers[i].lr = lr;
    }
    const ps_err err = set_numbers(s, numbers);
    free(numbers);
    return err;
}

int pstrain_set_lr(pstrain_session *s, double lr)
{
    STEPS_CALL(s, set_lr(s, lr));
}

/* --- steps ------------------------------------------------------------------------- */

static ps_err steps_begin(pstrain_session *s, uint32_t step_of, uint64_t *step)
{
    if (s->begun)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_begin: step %" PRIu64 " is not finished yet "
                          "(pstrain_finish)",
                          s->step);
    PS_TRY(pstrain_device_begin(s, step_of));
    // Before anything of the step is pushed.
    if (s->new_numbers) ps_param_groups_set(&s->groups, s->step, s->numbers);
    s->new_numbers = false;
    PS_TRY(ps_session_begin_of(s->session, s->step, step_of));
    s->begun = true;
    if (step) *step = s->step;
    return PS_OK;
}

int pstrain_begin(pstrain_session *s, uint64_t *step)
{
    STEPS_CALL(s, steps_begin(s, PS_STEP_OF_ALL, step));
}

static ps_err steps_begin_of(pstrain_session *s, int optimizer, uint64_t *step)
{
    if (optimizer < 0 || optimizer >= s->n_optimizers)
        return ps_err_set(PS_ERR_ARG, "pstrain_begin_of: optimizer %d, but there are %d",
                          optimizer, s->n_optimizers);
    return steps_begin(s, (uint32_t)optimizer + 1, step);
}

int pstrain_begin_of(pstrain_session *s, int optimizer, uint64_t *step)
{
    STEPS_CALL(s, steps_begin_of(s, optimizer, step));
}

/* Whether [first, first + n) are parameters; else ARG. */
static ps_err steps_check_range(const pstrain_session *s, int first, int n,
                                const char *call)
{
    const int all = s->own.table.n_tensors;
    if (first >= 0 && n > 0 && n <= all - first) return PS_OK;
    return ps_err_set(PS_ERR_ARG, "%s: parameters %d to %d, but there are %d", call,
                      first, first + n - 1, all);
}

/* The same, of a step that has begun. */
static ps_err check_begun(const pstrain_session *s, int first, int n, const char *call)
{
    if (s->begun) return steps_check_range(s, first, n, call);
    return ps_err_set(PS_ERR_ARG, "%s: no step has begun (pstrain_begin)", call);
}

static ps_err steps_wait_for(pstrain_session *s, int first, int n)
{
    PS_TRY(steps_check_host(s, "pstrain_wait"));
    PS_TRY(steps_check_range(s, first, n, "pstrain_wait"));
    return ps_session_wait(s->session, first, n);
}

int pstrain_wait(pstrain_session *s, int first, int n)
{
    STEPS_CALL(s, steps_wait_for(s, first, n));
}

static ps_err steps_ready(pstrain_session *s, int first, int n, int *here)
{
    bool all;
    PS_TRY(steps_check_range(s, first, n, "pstrain_ready"));
    PS_TRY(ps_session_ready(s->session, first, n, &all));
    *here = all;
    return PS_OK;
}

int pstrain_ready(pstrain_session *s, int first, int n, int *here)
{
    STEPS_CALL(s, steps_ready(s, first, n, here));
}

static float *steps_gradient_of(pstrain_session *s, int i)
{
    return ps_session_grads(s->session) + s->own.table.tensors[i].offset;
}

static ps_err check_push(const pstrain_session *s, int first, int n, const char *call)
{
    PS_TRY(steps_check_host(s, call));
    PS_TRY(check_begun(s, first, n, call));
    const ps_err err = ps_session_check_push(s->session, first, n);
    if (err != PS_OK) ps_err_prefix(err, "%s in step %" PRIu64, call, s->step);
    return err;
}

static ps_err push_there(pstrain_session *s, int first, int n)
{
    PS_TRY(check_push(s, first, n, "pstrain_push"));
    for (int i = first; i < first + n; i++)
        ps_absent_clear(steps_gradient_of(s, i), s->own.table.tensors[i].count);
    return ps_session_push(s->session, first, n);
}

int pstrain_push(pstrain_session *s, int first, int n)
{
    STEPS_CALL(s, push_there(s, first, n));
}

static ps_err push_none(pstrain_session *s, int first, int n)
{
    PS_TRY(check_push(s, first, n, "pstrain_push_none"));
    for (int i = first; i < first + n; i++)
        ps_absent_fill(steps_gradient_of(s, i), s->own.table.tensors[i].count);
    return ps_session_push(s->session, first, n);
}

int pstrain_push_none(pstrain_session *s, int first, int n)
{
    STEPS_CALL(s, push_none(s, first, n));
}

static void copy_gradient(pstrain_session *s, int index, const float *from, float factor)
{
    const ps_tensor *t = &s->own.table.tensors[index];
    float *to = steps_gradient_of(s, index);
    const uint64_t bytes = s->own.table.arena_count * sizeof *to;
    const bool bypass = ps_nontemporal_copy_pays(2 * bytes); // and as many weights
    if (bypass && factor == 1)
        ps_nontemporal_copy(to, from, t->count);
    else if (bypass)
        ps_nontemporal_scaled_copy(to, from, factor, t->count);
    else if (factor == 1)
        memcpy(to, from, t->count * sizeof *to);
    else
        for (uint64_t i = 0; i < t->count; i++)
            to[i] = from[i] * factor;
    if (bypass) ps_nontemporal_copy_done();
    ps_absent_clear(to, t->count);
}

static ps_err push_copy(pstrain_session *s, int index, const float *from, float factor)
{
    PS_TRY(check_push(s, index, 1, "pstrain_push_copy"));
    if (!from)
        return ps_err_set(PS_ERR_ARG, "pstrain_push_copy: the gradient of %s is NULL",
                          s->own.table.tensors[index].name);
    copy_gradient(s, index, from, factor);
    return ps_session_push(s->session, index, 1);
}

int pstrain_push_copy(pstrain_session *s, int index, const float *from, float factor)
{
    STEPS_CALL(s, push_copy(s, index, from, factor));
}

static ps_err steps_finish(pstrain_session *s)
{
    if (!s->begun)
        return ps_err_set(PS_ERR_ARG, "pstrain_finish: no step has begun "
                                      "(pstrain_begin)");
    const ps_err err =
        s->device ? pstrain_device_finish(s) : ps_session_finish(s->session);
    if (err == PS_ERR_ARG)
        return ps_err_set(err,
                          "pstrain_finish: %s (pstrain_push_none where there is no "
                          "gradient)",
                          ps_err_message());
    PS_TRY(err);
    s->begun = false;
    s->step++;
    atomic_fetch_add(&s->finished, 1);
    return PS_OK;
}

int pstrain_finish(pstrain_session *s)
{
    PSTRAIN_RETURN(steps_enter_beside(s, __func__),
                   pstrain_leave(s, PSTRAIN_LANE_MAIN, steps_finish(s)));
}

static ps_err between_steps(const pstrain_session *s, const char *call)
{
    if (!s->begun) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "%s: step %" PRIu64 " is not finished yet (pstrain_finish)", call,
                      s->step);
}

static ps_err steps_drain(pstrain_session *s)
{
    PS_TRY(between_steps(s, "pstrain_drain"));
    return ps_session_drain(s->session);
}

int pstrain_drain(pstrain_session *s)
{
    STEPS_CALL(s, steps_drain(s));
}

/* A scale that has become smaller tells of a step that was skipped. */
static ps_err loss_scale(pstrain_session *s, float *scale, uint64_t *skipped)
{
    float now;
    PS_TRY(ps_session_loss_scale(s->session, &now));
    s->skipped += now < s->scale;
    s->scale = now;
    if (scale) *scale = now;
    if (skipped) *skipped = s->skipped;
    return PS_OK;
}

int pstrain_loss_scale(pstrain_session *s, float *scale, uint64_t *skipped)
{
    STEPS_CALL(s, loss_scale(s, scale, skipped));
}

static ps_err sync_all(pstrain_session *s)
{
    PS_TRY(between_steps(s, "pstrain_sync"));
    PS_TRY(ps_session_drain(s->session));
    PS_TRY(pstrain_device_renew(s));
    return ps_session_sync_buffers(s->session);
}

int pstrain_sync(pstrain_session *s)
{
    STEPS_CALL(s, sync_all(s));
}

/* --- sums: whether memory was changed ---------------------------------------------- */

uint32_t pstrain_checksum(const void *from, uint64_t bytes)
{
    return ps_memory_sum(from, bytes);
}

/* --- state ------------------------------------------------------------------------- */

static const ps_optimizer *optimizer_of(const pstrain_session *s)
{
    return s && s->session && !s->reduces ? ps_session_optimizer(s->session) : NULL;
}

int pstrain_state_arrays(const pstrain_session *s)
{
    const ps_optimizer *opt = optimizer_of(s);
    return opt ? opt->n_states : 0;
}

const char *pstrain_state_name(const pstrain_session *s, int i)
{
    const ps_optimizer *opt = optimizer_of(s);
    if (!opt) return NULL;
    const ps_optimizer first = ps_param_groups_optimizer(opt, &s->groups.first[0]);
    return i >= 0 && i < ps_optimizer_own_states(&first)
               ? ps_optimizer_state_name(&first, i)
               : NULL;
}

int pstrain_state_has_feedback(const pstrain_session *s)
{
    return optimizer_of(s) && ps_codec_feeds_back(s->full->exchange.codec);
}

ps_err pstrain_missed_room(const pstrain_session *s, ps_exchange_state *state)
{
    if (s->rank != 0 || !s->own.table.optional) return PS_OK;
    return PS_NEW(&state->missed, s->own.table.arena_count, "missed steps");
}

static void take_missed(const pstrain_session *s, const float *arena, uint64_t *missed)
{
    for (int i = 0; i < s->own.table.n_tensors; i++) {
        uint32_t n;
        memcpy(&n, arena + s->own.table.tensors[i].offset, sizeof n);
        missed[i] = n;
    }
}

static ps_err steps_save(pstrain_session *s, pstrain_state *out)
{
    ps_exchange_state state = {0};
    if (!out || out->struct_size < offsetof(pstrain_state, missed))
        return ps_err_set(PS_ERR_ARG, "pstrain_save: struct_size is not a size of "
                                      "pstrain_state");
    PS_TRY(between_steps(s, "pstrain_save"));
    for (int i = 0; i < optimizer_of(s)->n_states && s->rank == 0; i++) {
        state.states[i] = out->arrays[i];
        if (!state.states[i])
            return ps_err_set(PS_ERR_ARG, "pstrain_save: worker 0 needs memory for the "
                                          "optimizer's arrays");
    }
    state.weights = s->rank == 0 ? out->weights : NULL;
    state.feedback = out->feedback;
    PS_TRY(ps_session_drain(s->session));
    PS_TRY(pstrain_missed_room(s, &state));
    const ps_err err = ps_session_save(s->session, &state);
    if (err == PS_OK && state.missed && out->struct_size >= sizeof *out && out->missed)
        take_missed(s, state.missed, out->missed);
    free(state.missed);
    PS_TRY(err);
    out->step = s->step;
    out->rule_bytes = state.rule_bytes;
    memcpy(out->rule, state.rule, sizeof state.rule);
    return PS_OK;
}

int pstrain_save(pstrain_session *s, pstrain_state *state)
{
    STEPS_CALL(s, steps_save(s, state));
}

/* --- another table ----------------------------------------------------------------- */

/* The arenas' owner is a ps_session: a pstrain_arenas is one. */

static void say_figures_go(pstrain_session *s, bool go)
{
    pthread_mutex_lock(&s->lock);
    s->figures_go = go;
    pthread_mutex_unlock(&s->lock);
}

static ps_err close_table(pstrain_session *s, pstrain_arenas **arenas)
{
    if (!arenas) return ps_err_set(PS_ERR_ARG, "pstrain_close_table: arenas is NULL");
    PS_TRY(between_steps(s, "pstrain_close_table"));
    if (s->rows)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_close_table: the job has embedding tables, "
                          "which would be lost");
    pstrain_device_destroy(&s->device);
    *arenas = NULL;
    say_figures_go(s, true);
    PS_TRY(ps_session_retire(s->session));
    *arenas = (pstrain_arenas *)s->session;
    s->session = NULL;
    pstrain_forget_table(s);
    if (s->member) ps_member_next_table(s->member);
    ps_life_reach(&s->life, PS_STAGE_JOINED);
    say_figures_go(s, false);
    return PS_OK;
}

int pstrain_close_table(pstrain_session *s, pstrain_arenas **arenas)
{
    STEPS_CALL(s, close_table(s, arenas));
}

void pstrain_arenas_free(pstrain_arenas **arenas)
{
    if (!arenas || !*arenas) return;
    ps_session *session = (ps_session *)*arenas;
    ps_session_destroy(&session);
    *arenas = NULL;
}

/* --- figures ----------------------------------------------------------------------- */

/* Zeros where there is no table. */
static ps_exchange_stats steps_figures(pstrain_session *s)
{
    ps_exchange_stats x = {0};
    pthread_mutex_lock(&s->lock);
    if (ps_life_stage(&s->life) == PS_STAGE_STARTED && !s->figures_go) {
        PS_FAULT_POINT("figures.read");
        if (s->reduces)
            pstrain_reducing_stats(s, &x);
        else
            ps_session_stats(s->session, &x);
    }
    pthread_mutex_unlock(&s->lock);
    return x;
}

int pstrain_stats_get(const pstrain_session *s, pstrain_stats *out)
{
    if (!s || !out || out->struct_size < sizeof(size_t) + sizeof(uint64_t))
        return ps_err_set(PS_ERR_ARG, "pstrain_stats_get: struct_size is not a size of "
                                      "pstrain_stats");
    const ps_exchange_stats x = steps_figures((pstrain_session *)(uintptr_t)s);
    const size_t room = out->struct_size;
    const pstrain_stats all = {.struct_size = room,
                               .steps = atomic_load(&s->finished),
                               .bytes_sent = x.bytes_sent,
                               .bytes_received = x.bytes_received,
                               .raw_bytes = x.raw_bytes,
                               .shm_sent = x.shm_sent,
                               .shm_received = x.shm_received,
                               .wait_seconds = x.wait_seconds};
    memcpy(out, &all, room < sizeof all ? room : sizeof all);
    return PSTRAIN_OK;
}
