#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_keys.h"
#include "pstrain_state.h"
#include "typed_reduce.h"

/* A collective is one or two gathers of the coordinator (member.h), which adds doubles.
 * Each worker fills a part of its own and leaves the others 0, so the sum holds what
 * everybody gave. A double holds four bytes.
 *
 * In the first gather each worker says what it calls and with how many bytes, so that a
 * disagreement is an error on every worker; the bytes are in it where they are few. */
enum {
    HEAD_DOUBLES = 2,    // what, bytes
    INLINE_DOUBLES = 16, // behind them
    WORD_BYTES = 4,      // in a double
    INLINE_BYTES = INLINE_DOUBLES * WORD_BYTES,
    PART = HEAD_DOUBLES + INLINE_DOUBLES,
    GATHER_DOUBLES = 65536,
    PIECE_BYTES = 4 << 20,   // of a worker, through the store
    STORE_BYTES = 512 << 20, // of all workers' pieces
    REDUCE_BYTES = 1 << 20   // of a worker, reduced at once
};

typedef enum call_kind { BARRIER = 1, BROADCAST, ALL_GATHER, ALL_REDUCE } call_kind;

typedef struct call {
    call_kind kind;
    int root, dtype, op;
    uint64_t bytes; // of each worker
} call;

static const char *call_name(int kind)
{
    static const char *const names[] = {[BARRIER] = "pstrain_barrier",
                                        [BROADCAST] = "pstrain_broadcast",
                                        [ALL_GATHER] = "pstrain_all_gather",
                                        [ALL_REDUCE] = "pstrain_all_reduce"};
    return kind >= BARRIER && kind <= ALL_REDUCE ? names[kind] : "something else";
}

enum { KINDS = 8, DTYPES = 16, OPS = 16 };

static double code_of(const call *c)
{
    return (double)(((c->root * OPS + c->op) * DTYPES + c->dtype) * KINDS + (int)c->kind);
}

static ps_err collectives_disagree(const pstrain_session *s, const call *own, int rank,
                                   const double *head)
{
    const int other = (int)head[0] % KINDS;
    return ps_err_set(PS_ERR_ARG,
                      "worker %d calls %s with %" PRIu64 " bytes, but worker %d calls %s "
                      "with %.0f bytes%s",
                      s->rank, call_name((int)own->kind), own->bytes, rank,
                      call_name(other), head[1],
                      other == (int)own->kind && (double)own->bytes == head[1]
                          ? ", another type, operation or root"
                          : "");
}

/* --- bytes as doubles -------------------------------------------------------------- */

static void collectives_pack(double *to, const void *from, uint64_t bytes)
{
    const uint8_t *in = from;
    for (uint64_t at = 0; at < bytes; at += WORD_BYTES) {
        uint32_t word = 0;
        memcpy(&word, in + at, bytes - at < WORD_BYTES ? bytes - at : WORD_BYTES);
        to[at / WORD_BYTES] = word;
    }
}

static void collectives_unpack(void *to, const double *from, uint64_t bytes)
{
    uint8_t *out = to;
    for (uint64_t at = 0; at < bytes; at += WORD_BYTES) {
        const uint32_t word = (uint32_t)from[at / WORD_BYTES];
        memcpy(out + at, &word, bytes - at < WORD_BYTES ? bytes - at : WORD_BYTES);
    }
}

/* --- gathering --------------------------------------------------------------------- */

/* The first gather. *values (world_size * PART) is owned by the caller. ARG where the
 * others call something else. */
static ps_err collectives_meet(pstrain_session *s, const call *c, const void *in,
                               double **values)
{
    const size_t n = (size_t)s->world_size * PART;
    PS_TRY(PS_NEW(values, n, "a collective"));
    double *own = *values + (size_t)s->rank * PART;
    own[0] = code_of(c);
    own[1] = (double)c->bytes;
    if (in && c->bytes <= INLINE_BYTES)
        collectives_pack(own + HEAD_DOUBLES, in, c->bytes);
    ps_err err =
        ps_member_reduce(s->member, "collective", *values, n, pstrain_step_deadline(s));
    for (int r = 0; r < s->world_size && err == PS_OK; r++) {
        const double *head = *values + (size_t)r * PART;
        if (head[0] != code_of(c) || head[1] != (double)c->bytes)
            err = collectives_disagree(s, c, r, head);
    }
    if (err == PS_OK) return PS_OK;
    free(*values);
    *values = NULL;
    return err;
}

/* Everybody's bytes by one gather. out (world_size * bytes). */
static ps_err gather_doubles(pstrain_session *s, const void *in, uint64_t bytes,
                             uint8_t *out)
{
    const size_t words = (size_t)((bytes + WORD_BYTES - 1) / WORD_BYTES);
    const size_t n = words * (size_t)s->world_size;
    double *values;
    PS_TRY(PS_NEW(&values, n, "a collective"));
    collectives_pack(values + words * (size_t)s->rank, in, bytes);
    ps_err err = ps_member_reduce(s->member, "collective/bytes", values, n,
                                  pstrain_step_deadline(s));
    for (int r = 0; r < s->world_size && err == PS_OK; r++)
        collectives_unpack(out + (size_t)r * bytes, values + words * (size_t)r, bytes);
    free(values);
    return err;
}

static ps_err put_piece(pstrain_session *s, const void *in, uint64_t bytes)
{
    const ps_job_key key = ps_job_key_array(s->rank);
    return ps_member_put(s->member, key.text, in, bytes, pstrain_step_deadline(s));
}

static ps_err get_piece(pstrain_session *s, int rank, uint64_t bytes, void *out)
{
    const ps_job_key key = ps_job_key_array(rank);
    void *value;
    size_t n;
    PS_TRY(ps_member_get(s->member, key.text, &value, &n, pstrain_step_deadline(s)));
    if (n == bytes) memcpy(out, value, n);
    free(value);
    if (n == bytes) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "%s has %zu bytes, not %" PRIu64, key.text, n,
                      bytes);
}

/* A piece through the store: everybody's, or root's alone (-1: everybody's). out: by
 * rank, stride bytes apart; of root alone: its piece. */
static ps_err store_piece(pstrain_session *s, int root, const void *in, uint64_t bytes,
                          uint8_t *out, uint64_t stride)
{
    const bool gives = root < 0 || root == s->rank;
    if (gives) PS_TRY(put_piece(s, in, bytes));
    PS_TRY(ps_member_barrier(s->member, "array/put", pstrain_step_deadline(s)));
    for (int r = 0; r < s->world_size; r++) {
        if (root >= 0 && (r != root || gives)) continue;
        uint8_t *to = root >= 0 ? out : out + (size_t)r * stride;
        if (r == s->rank)
            memcpy(to, in, bytes);
        else
            PS_TRY(get_piece(s, r, bytes, to));
    }
    return ps_member_barrier(s->member, "array/got", pstrain_step_deadline(s));
}

static uint64_t piece_max(const pstrain_session *s)
{
    const uint64_t share = STORE_BYTES / (uint64_t)s->world_size;
    return share < PIECE_BYTES ? share : PIECE_BYTES;
}

/* out (world_size, stride): the first `bytes` of each. */
static ps_err collectives_gather(pstrain_session *s, const void *in, uint64_t bytes,
                                 uint8_t *out, uint64_t stride)
{
    const uint64_t words = (bytes + WORD_BYTES - 1) / WORD_BYTES;
    if (stride == bytes && words * (uint64_t)s->world_size <= GATHER_DOUBLES)
        return gather_doubles(s, in, bytes, out);
    const uint64_t most = piece_max(s);
    for (uint64_t at = 0; at < bytes; at += most) {
        const uint64_t n = bytes - at < most ? bytes - at : most;
        PS_TRY(store_piece(s, -1, (const uint8_t *)in + at, n, out + at, stride));
    }
    return put_piece(s, "", 0); // the coordinator need not keep it
}

/* --- the calls --------------------------------------------------------------------- */

static ps_err check_memory(const void *data, uint64_t bytes, const char *name)
{
    if (data || bytes == 0) return PS_OK;
    return ps_err_set(PS_ERR_ARG, "%s: the memory is NULL", name);
}

static ps_err collectives_barrier(pstrain_session *s)
{
    const call c = {.kind = BARRIER};
    double *values = NULL;
    if (!s->member) return PS_OK;
    PS_TRY(collectives_meet(s, &c, NULL, &values));
    free(values);
    return PS_OK;
}

int pstrain_barrier(pstrain_session *s)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_COLLECTIVE, PS_IN_MEMBER, collectives_barrier(s));
}

static ps_err broadcast_large(pstrain_session *s, uint8_t *data, uint64_t bytes, int root)
{
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        const uint64_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        PS_TRY(store_piece(s, root, data + at, n, data + at, 0));
    }
    return s->rank == root ? put_piece(s, "", 0) : PS_OK;
}

static ps_err collectives_broadcast(pstrain_session *s, void *data, uint64_t bytes,
                                    int root)
{
    const call c = {.kind = BROADCAST, .root = root, .bytes = bytes};
    double *values = NULL;
    PS_TRY(check_memory(data, bytes, "pstrain_broadcast"));
    if (root < 0 || root >= s->world_size)
        return ps_err_set(PS_ERR_ARG, "pstrain_broadcast: root %d of %d workers", root,
                          s->world_size);
    if (!s->member) return PS_OK;
    PS_TRY(collectives_meet(s, &c, s->rank == root ? data : NULL, &values));
    if (bytes <= INLINE_BYTES)
        collectives_unpack(data, values + (size_t)root * PART + HEAD_DOUBLES, bytes);
    free(values);
    return bytes <= INLINE_BYTES ? PS_OK : broadcast_large(s, data, bytes, root);
}

int pstrain_broadcast(pstrain_session *s, void *data, uint64_t bytes, int root)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_COLLECTIVE, PS_IN_MEMBER,
                 collectives_broadcast(s, data, bytes, root));
}

/* After the first gather, which may hold the bytes. */
static ps_err gather_rest(pstrain_session *s, const double *values, const void *in,
                          uint64_t bytes, uint8_t *out)
{
    if (bytes > INLINE_BYTES) return collectives_gather(s, in, bytes, out, bytes);
    for (int r = 0; r < s->world_size; r++)
        collectives_unpack(out + (size_t)r * bytes,
                           values + (size_t)r * PART + HEAD_DOUBLES, bytes);
    return PS_OK;
}

static ps_err collectives_all_gather(pstrain_session *s, const void *in, uint64_t bytes,
                                     void *out)
{
    const call c = {.kind = ALL_GATHER, .bytes = bytes};
    double *values = NULL;
    PS_TRY(check_memory(in, bytes, "pstrain_all_gather"));
    PS_TRY(check_memory(out, bytes, "pstrain_all_gather"));
    if (!s->member) {
        if (bytes) memmove(out, in, bytes);
        return PS_OK;
    }
    PS_TRY(collectives_meet(s, &c, in, &values));
    const ps_err err = gather_rest(s, values, in, bytes, out);
    free(values);
    return err;
}

int pstrain_all_gather(pstrain_session *s, const void *in, uint64_t bytes, void *out)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_COLLECTIVE, PS_IN_MEMBER,
                 collectives_all_gather(s, in, bytes, out));
}

/* --- reduction --------------------------------------------------------------------- */

/* all (world_size, n) is in memory of its own, aligned. from (world_size) is for its
 * parts. */
static void reduce_ranks(const pstrain_session *s, const uint8_t *all, const void **from,
                         void *values, uint64_t n, int dtype, int op)
{
    for (int r = 0; r < s->world_size; r++)
        from[r] = all + (size_t)r * n * ps_dtype_bytes(dtype);
    ps_typed_reduce(values, from, s->world_size, n, dtype, op);
}

static ps_err reduce_pieces(pstrain_session *s, const double *met, uint8_t *values,
                            uint64_t bytes, int dtype, int op)
{
    const uint64_t most = bytes < REDUCE_BYTES ? bytes : REDUCE_BYTES;
    uint8_t *all;
    const void **from;
    PS_TRY(
        ps_mem_zalloc_aligned(&all, (size_t)most * (size_t)s->world_size, "a reduction"));
    ps_err err = PS_NEW(&from, (size_t)s->world_size, "a reduction");
    for (uint64_t at = 0; at < bytes && err == PS_OK; at += most) {
        const uint64_t n = bytes - at < most ? bytes - at : most;
        err = bytes <= INLINE_BYTES ? gather_rest(s, met, values, n, all)
                                    : collectives_gather(s, values + at, n, all, n);
        if (err == PS_OK)
            reduce_ranks(s, all, from, values + at, n / ps_dtype_bytes(dtype), dtype, op);
    }
    free(all);
    free((void *)from);
    return err;
}

static ps_err all_reduce(pstrain_session *s, void *values, uint64_t n, int dtype, int op)
{
    if (!ps_reduce_fits(dtype, op))
        return ps_err_set(PS_ERR_ARG, "pstrain_all_reduce: no such type or operation");
    PS_TRY(check_memory(values, n, "pstrain_all_reduce"));
    const uint64_t bytes = n * ps_dtype_bytes(dtype);
    const call c = {.kind = ALL_REDUCE, .dtype = dtype, .op = op, .bytes = bytes};
    double *met = NULL;
    if (!s->member) return PS_OK;
    PS_TRY(collectives_meet(s, &c, values, &met));
    const ps_err err = bytes ? reduce_pieces(s, met, values, bytes, dtype, op) : PS_OK;
    free(met);
    return err;
}

int pstrain_all_reduce(pstrain_session *s, void *values, uint64_t n, int dtype, int op)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_COLLECTIVE, PS_IN_MEMBER,
                 all_reduce(s, values, n, dtype, op));
}
