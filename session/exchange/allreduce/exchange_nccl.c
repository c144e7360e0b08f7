/* All-reduce between GPUs through NCCL, the engine that PyTorch's DDP uses there.
 *
 * libnccl.so.2 is loaded when it is asked for, so that one binary runs everywhere. The
 * communicator is non-blocking: every call returns at once and is watched through
 * ncclCommGetAsyncError and the stream's events until a deadline, then aborted. Sums on a
 * GPU are queued behind the gradients and not waited for, only watched.
 */
#include "allreduce.h"

#include <nccl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "dynlib.h"
#include "job_keys.h"

#define NCCL_FUNCTIONS(X)                                                                \
    X(GetUniqueId)                                                                       \
    X(CommInitRankConfig)                                                                \
    X(CommGetAsyncError)                                                                 \
    X(CommAbort)                                                                         \
    X(CommFinalize)                                                                      \
    X(CommDestroy)                                                                       \
    X(AllReduce)                                                                         \
    X(Broadcast)                                                                         \
    X(GroupStart)                                                                        \
    X(GroupEnd)                                                                          \
    X(GetErrorString)                                                                    \
    X(GetLastError)                                                                      \
    X(GetVersion)

typedef struct nccl_library {
#define MEMBER(name) __typeof__(nccl##name) *name;
    NCCL_FUNCTIONS(MEMBER)
#undef MEMBER
} nccl_library;

/* The limit of a wait. */
typedef struct limit {
    ps_deadline at;
    uint64_t ms;
    const char *key; // that sets it
} limit;

typedef struct nccl_collective {
    ps_collective base;
    nccl_library nccl;
    ncclComm_t comm; // NULL before it is made and once it is aborted
    ps_device_stream *stream;
    ps_member *member;
    int world_size;
    uint64_t step_timeout_ms;
    limit queued;        // of the last sum
    atomic_bool aborted; // by another thread
} nccl_collective;

static nccl_collective *nccl_of(ps_collective *c)
{
    return (nccl_collective *)c;
}

static ps_err nccl_load(nccl_library *lib)
{
    const ps_dynlib nccl = {"nccl", "libnccl.so.2", "NCCL 2.14 or newer"};
    const ps_dynlib_symbol symbols[] = {
#define SYMBOL(name) {"nccl" #name, (void **)&lib->name, false},
        NCCL_FUNCTIONS(SYMBOL)
#undef SYMBOL
    };
    return ps_dynlib_open(&nccl, symbols, sizeof symbols / sizeof symbols[0]);
}

static void pause_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000L}, NULL);
}

static void nccl_give_up(nccl_collective *c)
{
    if (c->comm) c->nccl.CommAbort(c->comm);
    c->comm = NULL;
}

static ps_err nccl_error(nccl_collective *c, const char *what, ncclResult_t result)
{
    const char *last = c->nccl.GetLastError(c->comm); // of a communicator, or of none
    const bool more = last && last[0];
    return ps_err_set(PS_ERR_NET, "nccl: %s: %s%s%.300s", what,
                      c->nccl.GetErrorString(result), more ? ": " : "", more ? last : "");
}

typedef enum awaited {
    QUEUED, // the communicator has put its work into the stream
    DONE    // and the stream has passed its last mark
} awaited;

/* *done false: not yet. Never blocks. */
static ps_err nccl_progress(nccl_collective *c, const char *what, awaited until,
                            bool *done)
{
    *done = false;
    ncclResult_t state;
    ncclResult_t rc = c->nccl.CommGetAsyncError(c->comm, &state);
    if (rc != ncclSuccess) return nccl_error(c, what, rc);
    if (state == ncclInProgress) return PS_OK;
    if (state != ncclSuccess) return nccl_error(c, what, state);
    *done = true;
    return until == DONE ? c->stream->ops->done(c->stream, done) : PS_OK;
}

static limit step_limit(const nccl_collective *c)
{
    uint64_t ms = c->step_timeout_ms;
    return (limit){ps_deadline_in_ms(ms), ms, "net.step_timeout_ms"};
}

/* As progress, but fails after an abort or when the limit has passed. */
static ps_err nccl_look(nccl_collective *c, const char *what, awaited until, limit most,
                        bool *done)
{
    PS_TRY(nccl_progress(c, what, until, done));
    if (*done) return PS_OK;
    if (atomic_load(&c->aborted))
        return ps_err_set(PS_ERR_NET, "nccl: %s was aborted", what);
    if (c->member) PS_TRY(ps_member_check(c->member));
    if (!ps_deadline_passed(most.at)) return PS_OK;
    return ps_err_set(PS_ERR_TIMEOUT, "nccl: %s took longer than %llu ms (%s)", what,
                      (unsigned long long)most.ms, most.key);
}

/* Waits for what was asked for. The pauses grow from 10 us to 1 ms: a bucket takes
 * hundreds of microseconds at least. */
static ps_err await_stream(nccl_collective *c, const char *what, awaited until,
                           limit most)
{
    long us = 10;
    for (;;) {
        bool done;
        PS_TRY(nccl_look(c, what, until, most, &done));
        if (done) return PS_OK;
        pause_us(us);
        us = us < 500 ? us * 2 : 1000;
    }
}

static bool nccl_accepted(ncclResult_t rc)
{
    return rc == ncclSuccess || rc == ncclInProgress;
}

/* Closes the group that rc belongs to and waits until it is queued, or done; aborts on
 * any failure. */
static ps_err finish_group(nccl_collective *c, const char *what, awaited until,
                           ncclResult_t rc)
{
    limit most = step_limit(c);
    ncclResult_t end = c->nccl.GroupEnd();
    if (nccl_accepted(rc)) rc = end;
    ps_err err = nccl_accepted(rc) ? PS_OK : nccl_error(c, what, rc);
    if (err == PS_OK) err = await_stream(c, what, QUEUED, most);
    if (err == PS_OK) err = c->stream->ops->mark(c->stream);
    if (err == PS_OK && until == DONE) err = await_stream(c, what, DONE, most);
    if (err != PS_OK) nccl_give_up(c);
    return err;
}

static ps_err begin_group(nccl_collective *c, const char *what)
{
    if (!c->comm) return ps_err_set(PS_ERR_NET, "nccl: %s after an abort", what);
    ncclResult_t rc = c->nccl.GroupStart();
    return rc == ncclSuccess ? PS_OK : nccl_error(c, what, rc);
}

static ps_err nccl_all_reduce(ps_collective *base, float *values, uint64_t count)
{
    nccl_collective *c = nccl_of(base);
    if (count == 0) return PS_OK;
    uint64_t n = (uint64_t)c->world_size;
    base->bytes += 2 * (n - 1) * count * sizeof *values / n; // as a ring
    PS_TRY(begin_group(c, "all-reduce"));
    ncclResult_t rc = c->nccl.AllReduce(values, values, count, ncclFloat32, ncclSum,
                                        c->comm, c->stream->native);
    c->queued = step_limit(c);
    return finish_group(c, "all-reduce", QUEUED, rc);
}

static ps_err nccl_complete(ps_collective *base, bool wait, bool *done)
{
    nccl_collective *c = nccl_of(base);
    *done = true;
    if (!c->comm) return ps_err_set(PS_ERR_NET, "nccl: all-reduce after an abort");
    ps_err err = wait ? await_stream(c, "all-reduce", DONE, c->queued)
                      : nccl_look(c, "all-reduce", DONE, c->queued, done);
    if (err != PS_OK) nccl_give_up(c);
    return err;
}

static ps_err nccl_broadcast(ps_collective *base, const ps_collective_range *ranges,
                             int n)
{
    nccl_collective *c = nccl_of(base);
    PS_TRY(begin_group(c, "broadcast"));
    ncclResult_t rc = ncclSuccess;
    for (int i = 0; i < n && nccl_accepted(rc); i++) {
        if (c->world_size > 1) base->bytes += ranges[i].n_bytes;
        if (ranges[i].n_bytes)
            rc = c->nccl.Broadcast(ranges[i].bytes, ranges[i].bytes, ranges[i].n_bytes,
                                   ncclUint8, 0, c->comm, c->stream->native);
    }
    return finish_group(c, "broadcast", DONE, rc);
}

static void nccl_abort(ps_collective *base)
{
    atomic_store(&nccl_of(base)->aborted, true);
}

static void nccl_destroy(ps_collective **base)
{
    nccl_collective *c = nccl_of(*base);
    if (c->comm && !atomic_load(&c->aborted) &&
        nccl_accepted(c->nccl.CommFinalize(c->comm)) &&
        await_stream(c, "finalize", QUEUED, step_limit(c)) == PS_OK) {
        c->nccl.CommDestroy(c->comm);
        c->comm = NULL;
    }
    if (c->comm) nccl_give_up(c);
    free(c);
    *base = NULL;
}

static const ps_collective_ops nccl_ops = {
    .all_reduce = nccl_all_reduce,
    .complete = nccl_complete,
    .broadcast = nccl_broadcast,
    .abort = nccl_abort,
    .destroy = nccl_destroy,
};

/* What rank 0 tells. */
typedef struct nccl_start {
    ncclUniqueId id;
    int32_t version; // 22809: NCCL 2.28.9
} nccl_start;

static ps_err nccl_compare(int theirs, int own)
{
    if (theirs == own) return PS_OK;
    return ps_err_set(
        PS_ERR_UNSUPPORTED,
        "nccl: worker 0 has NCCL %d.%d.%d, this one %d.%d.%d: install the same "
        "version on all hosts",
        theirs / 10000, theirs / 100 % 100, theirs % 100, own / 10000, own / 100 % 100,
        own % 100);
}

/* Rank 0's unique id reaches everybody through the coordinator's store. */
static ps_err share_id(nccl_collective *c, int rank, uint64_t timeout_ms,
                       ncclUniqueId *id)
{
    static const char key[] = PS_JOB_KEY_NCCL_ID;
    ps_deadline deadline = ps_deadline_in_ms(timeout_ms);
    nccl_start start;
    int version = 0;
    memset(&start, 0, sizeof start);
    c->nccl.GetVersion(&version);
    if (rank == 0) {
        ncclResult_t rc = c->nccl.GetUniqueId(id);
        if (rc != ncclSuccess) return nccl_error(c, "unique id", rc);
        start.id = *id;
        start.version = version;
        return c->member ? ps_member_put(c->member, key, &start, sizeof start, deadline)
                         : PS_OK;
    }
    void *value = NULL;
    size_t bytes = 0;
    PS_TRY(ps_member_get(c->member, key, &value, &bytes, deadline));
    const bool fits = bytes == sizeof start;
    if (fits) memcpy(&start, value, sizeof start);
    free(value);
    if (!fits)
        return ps_err_set(PS_ERR_PROTOCOL, "nccl: the unique id has %zu bytes, not %zu",
                          bytes, sizeof start);
    *id = start.id;
    return nccl_compare(start.version, version);
}

static ps_err nccl_connect(const ps_exchange_options *options, ps_device_stream *stream,
                           ps_collective **out)
{
    const uint64_t ms = options->settings.join_timeout_ms;
    nccl_collective *c = NULL;
    if (!stream->native)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "nccl sums in the memory of GPUs: it needs train.device: cuda "
                          "(on the cpu: exchange.name: gloo)");
    PS_TRY(PS_NEW(&c, 1, "nccl"));
    c->base.ops = &nccl_ops;
    c->stream = stream;
    c->member = options->member;
    c->world_size = options->world_size;
    c->step_timeout_ms = options->settings.step_timeout_ms;
    *out = &c->base;
    PS_TRY(nccl_load(&c->nccl));
    ncclUniqueId id;
    PS_TRY(share_id(c, options->rank, ms, &id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t rc = c->nccl.CommInitRankConfig(&c->comm, options->world_size, id,
                                                 options->rank, &config);
    if (!nccl_accepted(rc)) return nccl_error(c, "communicator", rc);
    return await_stream(c, "communicator", QUEUED,
                        (limit){ps_deadline_in_ms(ms), ms, "net.join_timeout_ms"});
}

static ps_err nccl_create(const ps_exchange_options *options, ps_exchange **out)
{
    return ps_allreduce_create(&ps_exchange_nccl_ops, options, nccl_connect, out);
}

const ps_exchange_ops ps_exchange_nccl_ops = PS_ALLREDUCE_OPS("nccl", true, nccl_create);
