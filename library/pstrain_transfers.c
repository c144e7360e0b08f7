#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pstrain_state.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), "one number")
SAME(PSTRAIN_CALL_RECV, PS_TRANSFER_RECV);
SAME(PSTRAIN_CALL_ALL_REDUCE, PS_TRANSFER_ALL_REDUCE);
SAME(PSTRAIN_CALL_REDUCE_SCATTER, PS_TRANSFER_REDUCE_SCATTER);
SAME(PSTRAIN_INT64, PS_DTYPE_INT64);
SAME(PSTRAIN_BFLOAT16, PS_DTYPE_BFLOAT16);
SAME(PSTRAIN_PRODUCT, PS_REDUCE_PRODUCT);
SAME(PSTRAIN_BXOR, PS_REDUCE_BXOR);
SAME(sizeof(pstrain_part), sizeof(ps_transfer_part));
SAME(offsetof(pstrain_part, recv_bytes), offsetof(ps_transfer_part, recv_bytes));

struct pstrain_comm {
    pstrain_session *session;
    ps_comm_members members;
};

struct pstrain_transfer {
    pstrain_session *session;
    ps_transfer *transfer;
};

/* --- connecting -------------------------------------------------------------------- */

static ps_err transfers_connect(pstrain_session *s)
{
    if (!s->member || s->links || s->world_size == 1) return PS_OK;
    pthread_mutex_lock(&s->lock);
    const ps_config *config = pstrain_config(s);
    const ps_links_options o = {.member = s->member,
                                .rank = s->rank,
                                .world_size = s->world_size,
                                .shm = config->exchange.shm,
                                .io_threads = config->net.io_threads,
                                .join_timeout_ms = (uint64_t)config->net.join_timeout_ms,
                                .step_timeout_ms = (uint64_t)config->net.step_timeout_ms};
    pthread_mutex_unlock(&s->lock);
    return ps_links_open(&o, &s->links);
}

int pstrain_connect(pstrain_session *s)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_CONNECT, PS_IN_MEMBER, transfers_connect(s));
}

int pstrain_is_one_host(const pstrain_session *s)
{
    return s && (s->world_size == 1 || (s->links && ps_links_one_host(s->links)));
}

/* --- communicators ----------------------------------------------------------------- */

static ps_err comm_check_ranks(const pstrain_session *s, const int *ranks, int n,
                               int *self)
{
    *self = -1;
    for (int i = 0; i < n; i++) {
        if (ranks[i] == s->rank) *self = i;
        if (ranks[i] < 0 || ranks[i] >= s->world_size)
            return ps_err_set(PS_ERR_ARG, "pstrain_comm_create: %d is not a rank of %d",
                              ranks[i], s->world_size);
        for (int k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return ps_err_set(PS_ERR_ARG, "pstrain_comm_create: rank %d twice",
                                  ranks[i]);
    }
    if (*self >= 0) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "pstrain_comm_create: worker %d is not one of the ranks", s->rank);
}

static ps_err comm_create(pstrain_session *s, uint64_t number, const int *ranks, int n,
                          pstrain_comm **out)
{
    int self;
    if (!ranks || n < 1)
        return ps_err_set(PS_ERR_ARG, "pstrain_comm_create: there are no ranks");
    PS_TRY(comm_check_ranks(s, ranks, n, &self));
    if (n > 1 && !s->links)
        return ps_err_set(PS_ERR_ARG, "pstrain_comm_create: pstrain_connect comes first");
    pstrain_comm *c;
    PS_TRY(PS_NEW(&c, 1, "a communicator"));
    c->session = s;
    c->members = (ps_comm_members){.number = number, .n = n, .self = self};
    const ps_err err = PS_NEW(&c->members.ranks, (size_t)n, "a communicator");
    if (err != PS_OK) {
        free(c);
        return err;
    }
    memcpy(c->members.ranks, ranks, (size_t)n * sizeof *ranks);
    *out = c;
    return PS_OK;
}

int pstrain_comm_create(pstrain_session *s, uint64_t number, const int *ranks, int n,
                        pstrain_comm **out)
{
    if (!out) return ps_err_set(PS_ERR_ARG, "pstrain_comm_create: out is NULL");
    *out = NULL;
    PSTRAIN_CALL(s, PSTRAIN_LANE_CONNECT, PS_IN_MEMBER,
                 comm_create(s, number, ranks, n, out));
}

void pstrain_comm_destroy(pstrain_comm **comm)
{
    pstrain_comm *c = comm ? *comm : NULL;
    if (!c) return;
    free(c->members.ranks);
    free(c);
    *comm = NULL;
}

/* --- transfers --------------------------------------------------------------------- */

static ps_err transfer_fill(const pstrain_transfer_options *given, ps_transfer_options *o)
{
    if (!given || given->struct_size < sizeof *given)
        return ps_err_set(PS_ERR_ARG, "pstrain_transfer_begin: struct_size is not a size "
                                      "of pstrain_transfer_options");
    const bool reduces = given->call >= PSTRAIN_CALL_ALL_REDUCE;
    *o = (ps_transfer_options){.call = (ps_transfer_call)given->call,
                               .root = given->root,
                               .peer = given->peer,
                               .tag = given->tag,
                               .parts = (const ps_transfer_part *)given->parts,
                               .reduces = reduces,
                               .gathers = given->gathers != 0,
                               .dtype = (ps_dtype)given->dtype,
                               .op = (ps_reduce_op)given->op,
                               .type_of_bytes = reduces ? 0 : (uint8_t)given->dtype};
    return PS_OK;
}

/* These calls may overlap all others, and each other: there is no lane to enter. */
static ps_err transfer_expect(const pstrain_session *s, const char *call)
{
    if (getpid() == s->pid) return ps_life_expect(&s->life, PS_IN_MEMBER, call);
    return ps_err_set(PS_ERR_ARG, "%s: the session belongs to the process that made it",
                      call);
}

static int transfer_leave(pstrain_session *s, ps_err err)
{
    if (err != PS_OK && err != PS_ERR_ARG) ps_life_fail(&s->life, err);
    return (int)err;
}

int pstrain_transfer_begin(pstrain_comm *comm, const pstrain_transfer_options *options,
                           pstrain_transfer **out)
{
    ps_transfer_options o;
    pstrain_transfer *t;
    if (!out || !comm)
        return ps_err_set(PS_ERR_ARG, "pstrain_transfer_begin: comm or out is NULL");
    *out = NULL;
    pstrain_session *s = comm->session;
    ps_err err = transfer_expect(s, "pstrain_transfer_begin");
    if (err == PS_OK) err = transfer_fill(options, &o);
    if (err == PS_OK) err = PS_NEW(&t, 1, "a transfer");
    if (err != PS_OK) return (int)err;
    t->session = s;
    err = ps_transfer_begin(s->links, &comm->members, &o, &t->transfer);
    if (err == PS_OK)
        *out = t;
    else
        free(t);
    return transfer_leave(s, err);
}

int pstrain_transfer_wait(pstrain_transfer *t, int ms, int *done)
{
    bool over;
    if (!t || !done)
        return ps_err_set(PS_ERR_ARG, "pstrain_transfer_wait: t or done is NULL");
    const ps_err err = ps_transfer_wait(
        t->transfer, ps_deadline_in_ms(ms < 0 ? 0 : (uint64_t)ms), &over);
    *done = over;
    return transfer_leave(t->session, err);
}

int pstrain_transfer_from(const pstrain_transfer *t)
{
    return t ? ps_transfer_from(t->transfer) : -1;
}

int pstrain_transfer_end(pstrain_transfer **pointer)
{
    pstrain_transfer *t = pointer ? *pointer : NULL;
    if (!t) return PSTRAIN_OK;
    const ps_err err = ps_transfer_end(&t->transfer);
    if (err != PS_OK) return (int)err;
    free(t);
    *pointer = NULL;
    return PSTRAIN_OK;
}
