#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pstrain_state.h"

/* The servers sum by chunks, so the arenas of a reducer are slots of one chunk each. An
 * array takes as many slots as it needs, one after another in a ring, the same on every
 * rank; each slot goes on by itself, a step with each use. What is in flight:
 *
 *   retired <= piece < begun     piece p is in slot p % n_slots
 *
 * One thread begins, under `submit`, another ends, under `retire`; a thread that finds no
 * free slot, or waits for a sum, retires the oldest piece. The last element of a slot is
 * the number of elements in use, so that its sum shows whether the ranks agree. */
enum { SLOT = 65536, SLOT_BYTES = SLOT * sizeof(float), FEWEST_SLOTS = 8 };
enum { SLOT_ROOM = SLOT - 1 }; // elements of an array
static const uint64_t DEFAULT_BYTES = 64 << 20;

typedef struct slot {
    float *to; // where the sum goes
    uint64_t n;
    uint64_t ticket;
    uint64_t step; // the next use's
} slot;

struct pstrain_reducing {
    uint64_t n_slots;
    slot *slots;
    bool coded;
    pthread_mutex_t submit, retire;
    _Atomic uint64_t begun, retired;
    _Atomic uint64_t tickets; // given out
    _Atomic uint64_t wait_ns;
};

typedef struct pstrain_reducing reducing;

void pstrain_reducing_destroy(struct pstrain_reducing **pointer)
{
    reducing *r = *pointer;
    if (!r) return;
    pthread_mutex_destroy(&r->submit);
    pthread_mutex_destroy(&r->retire);
    free(r->slots);
    free(r);
    *pointer = NULL;
}

/* --- open -------------------------------------------------------------------------- */

static uint64_t slots_wanted(const pstrain_session *s, uint64_t bytes)
{
    const uint64_t n = (bytes ? bytes : DEFAULT_BYTES) / SLOT_BYTES;
    const uint64_t shards = (uint64_t)s->servers * (uint64_t)s->full->server.shards;
    const uint64_t least = shards > FEWEST_SLOTS ? shards : FEWEST_SLOTS;
    return n < least ? least : n;
}

static ps_err add_slots(pstrain_session *s, uint64_t n)
{
    const ps_dims dims = {.n = 1, .d = {SLOT}};
    char name[32];
    int index;
    for (uint64_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "slot.%" PRIu64, i);
        PS_TRY(
            ps_tensor_table_add(&s->own.table, name, dims, PS_TENSOR_WEIGHT, 1, &index));
    }
    return PS_OK;
}

/* Chunks go from the arena's end to its start. */
static uint32_t chunk_of(const reducing *r, uint64_t index)
{
    return (uint32_t)(r->n_slots - 1 - index);
}

static ps_err check_plan(const pstrain_session *s)
{
    const ps_plan *plan = ps_session_plan(s->session);
    const reducing *r = s->reducing;
    for (uint64_t i = 0; i < r->n_slots && plan->n_chunks == r->n_slots; i++) {
        const ps_chunk *c = &plan->chunks[chunk_of(r, i)];
        if (c->offset == i * SLOT && c->count == SLOT) continue;
        return ps_err_set(PS_ERR_INTERNAL, "slot %" PRIu64 " is not a chunk", i);
    }
    if (plan->n_chunks == r->n_slots) return PS_OK;
    return ps_err_set(PS_ERR_INTERNAL, "%u chunks for %" PRIu64 " slots", plan->n_chunks,
                      r->n_slots);
}

static ps_err make_reducing(pstrain_session *s, uint64_t n_slots)
{
    reducing *r;
    PS_TRY(PS_NEW(&s->reducing, 1, "a reducer"));
    r = s->reducing;
    pthread_mutex_init(&r->submit, NULL);
    pthread_mutex_init(&r->retire, NULL);
    r->n_slots = n_slots;
    r->coded = s->full->exchange.codec != PS_CODEC_NONE;
    return PS_NEW(&r->slots, n_slots, "a reducer");
}

static ps_err add_settings(pstrain_session *s, const pstrain_reducer *o)
{
    char shards[48], chunk[48];
    const char *const before[] = {"exchange.nan=allow", shards};
    const char *const after[] = {"optimizer.name=sum", chunk};
    snprintf(chunk, sizeof chunk, "exchange.chunk=%d", (int)SLOT_BYTES);
    if (s->servers == 0 && s->world_size > 1)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "pstrain_open_reducer: the job has no servers, which sum the "
                          "arrays (PS_SERVERS)");
    snprintf(shards, sizeof shards, "server.shards=%d",
             s->servers ? ps_member_roster(s->member)->servers[0].n_endpoints : 1);
    PS_TRY(pstrain_add_settings(s, before, 2));
    PS_TRY(pstrain_add_settings(s, o->settings, o->n_settings));
    return pstrain_add_settings(s, after, 2);
}

static ps_err open_reducer(pstrain_session *s, const pstrain_reducer *o)
{
    s->reduces = true;
    s->own.n_groups = 1;
    PS_TRY(add_settings(s, o));
    PS_TRY(ps_param_groups_init(&s->groups, 1));
    PS_TRY(pstrain_load_settings(s));
    const ps_exchange_ops *ops;
    PS_TRY(ps_exchange_find(&s->full->exchange, &ops));
    if (ops->servers && !ops->chunks)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "pstrain_open_reducer: exchange.levels 2 sums whole steps, not "
                          "arrays: take exchange.levels 1");
    const uint64_t n = s->servers ? slots_wanted(s, o->bytes) : 1;
    if (n > (uint64_t)PS_ARENA_COUNT_MAX / SLOT)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_open_reducer: bytes is %" PRIu64 ", at most %" PRId64
                          " are possible",
                          o->bytes, PS_ARENA_COUNT_MAX * (int64_t)sizeof(float));
    PS_TRY(make_reducing(s, n));
    PS_TRY(add_slots(s, n));
    PS_TRY(pstrain_agree(s, 0, NULL));
    PS_TRY(check_plan(s));
    return PS_OK;
}

static ps_err reduce_open_once(pstrain_session *s, const pstrain_reducer *given)
{
    pstrain_reducer o = {0};
    if (!given || given->struct_size < offsetof(pstrain_reducer, settings) ||
        (given->struct_size >= sizeof o && given->n_settings < 0))
        return ps_err_set(PS_ERR_ARG, "pstrain_open_reducer: struct_size is not a size "
                                      "of pstrain_reducer");
    memcpy(&o, given, given->struct_size < sizeof o ? given->struct_size : sizeof o);
    const ps_err err = open_reducer(s, &o);
    return err == PS_ERR_ARG ? PS_ERR_CONFIG : err;
}

int pstrain_open_reducer(pstrain_session *s, const pstrain_reducer *options)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_MAIN, PS_IN_JOINED, reduce_open_once(s, options));
}

/* --- retiring ---------------------------------------------------------------------- */

/* The sum of the ranks' numbers of elements, as the servers add it. */
static float agreed_count(const pstrain_session *s, uint64_t n)
{
    float sum = (float)n;
    for (int r = 1; r < s->world_size; r++)
        sum += (float)n;
    return sum;
}

static ps_err take_sum(pstrain_session *s, const slot *at, const float *sum)
{
    if (!s->reducing->coded && sum[SLOT - 1] != agreed_count(s, at->n))
        return ps_err_set(PS_ERR_PEER,
                          "pstrain_reduce_begin: worker %d gave %" PRIu64
                          " elements of sum %" PRIu64 ", other workers gave other "
                          "numbers: all must sum the same arrays in the same order",
                          s->rank, at->n, at->ticket);
    memcpy(at->to, sum, at->n * sizeof *sum);
    return PS_OK;
}

/* The oldest piece; the lock `retire` is held. */
static ps_err retire_one(pstrain_session *s)
{
    reducing *r = s->reducing;
    const uint64_t piece = atomic_load(&r->retired), index = piece % r->n_slots;
    slot *at = &r->slots[index];
    const uint64_t start = ps_clock_ns();
    PS_TRY(ps_session_wait_chunk(s->session, chunk_of(r, index), at->step + 1));
    atomic_fetch_add(&r->wait_ns, ps_clock_ns() - start);
    PS_TRY(take_sum(s, at, ps_session_params(s->session) + index * SLOT));
    at->step++;
    atomic_store(&r->retired, piece + 1);
    return PS_OK;
}

static ps_err reduce_make_room(pstrain_session *s)
{
    reducing *r = s->reducing;
    ps_err err = PS_OK;
    pthread_mutex_lock(&r->retire);
    while (err == PS_OK &&
           atomic_load(&r->begun) - atomic_load(&r->retired) == r->n_slots)
        err = retire_one(s);
    pthread_mutex_unlock(&r->retire);
    return err;
}

/* --- begin and end ----------------------------------------------------------------- */

static ps_err push_piece(pstrain_session *s, float *values, uint64_t n, uint64_t ticket)
{
    reducing *r = s->reducing;
    PS_TRY(reduce_make_room(s));
    const uint64_t piece = atomic_load(&r->begun), index = piece % r->n_slots;
    slot *at = &r->slots[index];
    float *to = ps_session_grads(s->session) + index * SLOT;
    at->to = values;
    at->n = n;
    at->ticket = ticket;
    memcpy(to, values, n * sizeof *to);
    memset(to + n, 0, (SLOT - n) * sizeof *to);
    if (!r->coded) to[SLOT - 1] = (float)n;
    PS_TRY(ps_session_push_chunk(s->session, chunk_of(r, index), at->step));
    atomic_store(&r->begun, piece + 1);
    return PS_OK;
}

static ps_err reduce_begin(pstrain_session *s, float *values, uint64_t n,
                           uint64_t *ticket)
{
    reducing *r = s->reducing;
    ps_err err = PS_OK;
    if (!ticket || (!values && n > 0))
        return ps_err_set(PS_ERR_ARG, "pstrain_reduce_begin: values or ticket is NULL");
    pthread_mutex_lock(&r->submit);
    const uint64_t number = atomic_load(&r->tickets) + 1;
    for (uint64_t at = 0; at < n && err == PS_OK && s->member; at += SLOT_ROOM)
        err = push_piece(s, values + at, n - at < SLOT_ROOM ? n - at : SLOT_ROOM, number);
    if (err == PS_OK) {
        atomic_store(&r->tickets, number);
        *ticket = number;
    }
    pthread_mutex_unlock(&r->submit);
    return err;
}

static ps_err reduce_enter(pstrain_session *s, pstrain_lane lane, const char *call)
{
    PS_TRY(pstrain_enter(s, lane, PS_IN_STARTED, call));
    if (s->reduces) return PS_OK;
    pstrain_leave(s, lane, PS_OK);
    return ps_err_set(PS_ERR_ARG,
                      "%s: the session was opened with tensors (pstrain_open_reducer "
                      "makes one that sums arrays)",
                      call);
}

#define REDUCE_CALL(s, lane, work)                                                       \
    PSTRAIN_RETURN(reduce_enter(s, lane, __func__), pstrain_leave(s, lane, work))

int pstrain_reduce_begin(pstrain_session *s, float *values, uint64_t n, uint64_t *ticket)
{
    REDUCE_CALL(s, PSTRAIN_LANE_REDUCE_BEGIN, reduce_begin(s, values, n, ticket));
}

/* Retires what is in flight up to the ticket's last piece. */
static ps_err reduce_end(pstrain_session *s, uint64_t ticket)
{
    reducing *r = s->reducing;
    ps_err err = PS_OK;
    if (ticket < 1 || ticket > atomic_load(&r->tickets))
        return ps_err_set(PS_ERR_ARG, "pstrain_reduce_end: no such ticket: %" PRIu64,
                          ticket);
    pthread_mutex_lock(&r->retire);
    while (err == PS_OK && atomic_load(&r->retired) < atomic_load(&r->begun) &&
           r->slots[atomic_load(&r->retired) % r->n_slots].ticket <= ticket)
        err = retire_one(s);
    pthread_mutex_unlock(&r->retire);
    return err;
}

int pstrain_reduce_end(pstrain_session *s, uint64_t ticket)
{
    REDUCE_CALL(s, PSTRAIN_LANE_REDUCE_END, reduce_end(s, ticket));
}

/* --- the end ----------------------------------------------------------------------- */

ps_err pstrain_reducing_stop(pstrain_session *s)
{
    const uint64_t last = atomic_load(&s->reducing->tickets);
    if (last > 0) PS_TRY(reduce_end(s, last));
    return ps_session_close(s->session);
}

void pstrain_reducing_stats(const pstrain_session *s, ps_exchange_stats *out)
{
    ps_session_stats(s->session, out);
    out->wait_seconds = (double)atomic_load(&s->reducing->wait_ns) * 1e-9;
}
