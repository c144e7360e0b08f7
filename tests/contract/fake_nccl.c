/* A STAND-IN for libnccl.so.2, for tests on machines without GPUs. It is not NCCL.
 *
 * It sums in the memory of host_gpu.c between ranks that are threads of one process, with
 * the calls and the states of a non-blocking NCCL communicator: every call returns at
 * once, and its work goes on in calls of ncclCommGetAsyncError. Sums are in rank order.
 * Its soname is libnccl.so.2, so exchange_nccl.c finds it when it was loaded first.
 *
 * fake_nccl_queue(push): how work is pushed to a stream, where it begins in its turn.
 * fake_nccl_hold(true): no sum is made until (false).
 *
 * fake_nccl_break(rank, after, how): rank's collective number `after` (from 0, counted
 * since the call) and later ones fail (FAIL) or never end (HANG), on every rank. */
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 16, MAX_OPS = 8, FAIL = 1, HANG = 2 };

typedef struct op {
    const void *send;
    void *recv;
    size_t bytes;
    int is_sum; // of float32, else rank 0's bytes
} op;

typedef struct clique { // what the communicators of one unique id share
    struct clique *next;
    ncclUniqueId id;
    int n_ranks, n_joined, n_left;
    int n_given;                      // ranks that have given the present group
    int n_taken;                      // ranks that have taken its results
    void *inputs[MAX_RANKS][MAX_OPS]; // copies
} clique;

struct ncclComm {
    clique *of;
    int rank;
    op ops[MAX_OPS];
    int n_ops;
    void *stream;
    struct queued *queued; // in the stream, the newest first
    enum { IDLE, JOINING, QUEUED, BROKEN, STUCK } state;
};

/* A group in a stream. The stream owns it, and frees it when it is done. */
typedef struct queued {
    struct queued *next;
    ncclComm_t comm; // NULL: aborted
    op ops[MAX_OPS];
    int n_ops;
    int given;
} queued;

typedef void push_fn(void *stream, bool (*poll)(void *args), const void *args,
                     size_t bytes);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static clique *cliques;
static unsigned n_ids;
static int break_rank = -1, break_after, break_how;
static push_fn *push;
static bool held;
static _Thread_local ncclComm_t group[MAX_RANKS];
static _Thread_local int n_group, depth;

void fake_nccl_break(int rank, int after, int how);
int fake_nccl_open_communicators(void);
void fake_nccl_queue(push_fn *fn);
void fake_nccl_hold(bool hold);

void fake_nccl_queue(push_fn *fn)
{
    push = fn;
}

void fake_nccl_hold(bool hold)
{
    pthread_mutex_lock(&lock);
    held = hold;
    pthread_mutex_unlock(&lock);
}

void fake_nccl_break(int rank, int after, int how)
{
    pthread_mutex_lock(&lock);
    break_rank = rank;
    break_after = after;
    break_how = how;
    pthread_mutex_unlock(&lock);
}

int fake_nccl_open_communicators(void)
{
    pthread_mutex_lock(&lock);
    int n = 0;
    for (clique *c = cliques; c; c = c->next)
        n += c->n_joined - c->n_left;
    pthread_mutex_unlock(&lock);
    return n;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&lock);
    n_ids++;
    memcpy(id->internal, &n_ids, sizeof n_ids);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

static clique *find_clique(ncclUniqueId id, int n_ranks)
{
    for (clique *c = cliques; c; c = c->next)
        if (memcmp(&c->id, &id, sizeof id) == 0) return c;
    clique *c = calloc(1, sizeof *c);
    c->id = id;
    c->n_ranks = n_ranks;
    c->next = cliques;
    cliques = c;
    return c;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id,
                                    int rank, ncclConfig_t *config)
{
    if (n_ranks > MAX_RANKS || rank < 0 || rank >= n_ranks || config->blocking != 0)
        return ncclInvalidArgument;
    pthread_mutex_lock(&lock);
    *comm = calloc(1, sizeof **comm);
    (*comm)->of = find_clique(id, n_ranks);
    (*comm)->of->n_joined++;
    (*comm)->rank = rank;
    (*comm)->state = JOINING;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

ncclResult_t ncclGroupStart(void)
{
    if (depth++ == 0) n_group = 0;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (--depth > 0) return ncclSuccess;
    for (int i = 0; i < n_group; i++)
        group[i]->state = QUEUED;
    return n_group ? ncclInProgress : ncclSuccess;
}

static ncclResult_t enqueue(ncclComm_t comm, cudaStream_t stream, op o)
{
    /* NCCL allows a call outside a group. The exchange never makes one. */
    if (depth == 0 || comm->n_ops == MAX_OPS) return ncclInvalidUsage;
    if (comm->n_ops == 0) group[n_group++] = comm;
    comm->stream = stream;
    comm->ops[comm->n_ops++] = o;
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count,
                           ncclDataType_t type, ncclRedOp_t sum, ncclComm_t comm,
                           cudaStream_t stream)
{
    if (type != ncclFloat32 || sum != ncclSum) return ncclInvalidArgument;
    return enqueue(comm, stream, (op){send, recv, count * sizeof(float), 1});
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    if (type != ncclUint8 || root != 0) return ncclInvalidArgument;
    return enqueue(comm, stream, (op){send, recv, count, 0});
}

/* Hands over copies of the inputs, once all ranks have taken the results of the group
 * before. */
static bool give(ncclComm_t c, const op *ops, int n_ops)
{
    clique *q = c->of;
    if (q->n_given == q->n_ranks || (held && ops[0].is_sum)) return false;
    if (c->rank == break_rank && break_after-- <= 0) {
        c->state = break_how == HANG ? STUCK : BROKEN;
        return false;
    }
    for (int i = 0; i < n_ops; i++) {
        q->inputs[c->rank][i] = malloc(ops[i].bytes);
        memcpy(q->inputs[c->rank][i], ops[i].send, ops[i].bytes);
    }
    q->n_given++;
    return true;
}

static void take_one(const clique *q, const op *o, int i)
{
    memcpy(o->recv, q->inputs[0][i], o->bytes);
    if (!o->is_sum) return;
    float *out = o->recv;
    for (int r = 1; r < q->n_ranks; r++) {
        const float *in = q->inputs[r][i];
        for (size_t k = 0; k < o->bytes / sizeof(float); k++)
            out[k] += in[k];
    }
}

/* Takes the results, once all ranks have given their inputs. */
static bool take(ncclComm_t c, const op *ops, int n_ops)
{
    clique *q = c->of;
    if (q->n_given < q->n_ranks) return false;
    for (int i = 0; i < n_ops; i++)
        take_one(q, &ops[i], i);
    if (++q->n_taken == q->n_ranks) {
        for (int r = 0; r < q->n_ranks; r++)
            for (int i = 0; i < n_ops; i++)
                free(q->inputs[r][i]);
        q->n_given = q->n_taken = 0;
    }
    return true;
}

/* Runs a group of calls. All earlier work of its stream is done by now. */
static bool poll_queued(void *args)
{
    queued *g = *(queued **)args;
    pthread_mutex_lock(&lock);
    ncclComm_t c = g->comm;
    bool works = c && c->state != BROKEN && c->state != STUCK;
    if (works && !g->given) g->given = give(c, g->ops, g->n_ops);
    bool done = !c || (g->given && take(c, g->ops, g->n_ops));
    if (done) {
        for (queued **at = c ? &c->queued : NULL; at && *at; at = &(*at)->next) {
            if (*at != g) continue;
            *at = g->next;
            break;
        }
        free(g);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

static queued *queued_of(ncclComm_t c)
{
    queued *g = calloc(1, sizeof *g);
    *g = (queued){.next = c->queued, .comm = c, .n_ops = c->n_ops};
    memcpy(g->ops, c->ops, sizeof g->ops);
    c->queued = g;
    return g;
}

static void progress(ncclComm_t c)
{
    if (c->state == JOINING && c->of->n_joined == c->of->n_ranks) c->state = IDLE;
    if (c->state == IDLE) c->n_ops = 0;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    pthread_mutex_lock(&lock);
    queued *g = c->state == QUEUED ? queued_of(c) : NULL;
    if (g) c->state = IDLE;
    progress(c);
    *state = c->state == IDLE     ? ncclSuccess
             : c->state == BROKEN ? ncclRemoteError
                                  : ncclInProgress;
    pthread_mutex_unlock(&lock);
    if (g) push(c->stream, poll_queued, &g, sizeof(queued *)); // which may poll
    return ncclSuccess;
}

static ncclResult_t leave(ncclComm_t c)
{
    pthread_mutex_lock(&lock);
    c->of->n_left++;
    for (queued *g = c->queued; g; g = g->next)
        g->comm = NULL;
    pthread_mutex_unlock(&lock);
    free(c);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    return leave(c);
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    return leave(c);
}

const char *ncclGetLastError(ncclComm_t c)
{
    return c ? "the stand-in's last error" : "";
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22809;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError
               ? "a remote process exited or there was a network error"
               : "an error of the stand-in for NCCL";
}
