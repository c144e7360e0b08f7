/* libpstrain: parameter servers for a program of your own.
 *
 * A session is one worker's part in a job. The job has W workers (ranks 0 .. W - 1),
 * which call this library, and S server processes (ps-server, started without a model).
 * The servers sum the workers' gradients in rank order, make the optimizer's step, and
 * send the new weights back. With S = 0 the workers do this themselves: by all-reduce
 * where the library was built with it, or, for W = 1, alone.
 *
 *   pstrain_create          checks the options; opens no socket
 *   pstrain_join            waits for all members. From now on: collectives (below)
 *   pstrain_open            tensors and optimizer; makes the arenas
 *     (rank 0 writes the first weights into pstrain_params)
 *   pstrain_start           rank 0's weights and buffers become everybody's
 *   each step:
 *     pstrain_begin
 *     pstrain_wait          before weights are read: all at once, or tensor by tensor
 *     pstrain_push          when gradients are final: likewise, in any order
 *     pstrain_finish
 *   pstrain_drain           before all weights are read after the last step
 *   pstrain_close           leaves in order; waits until every worker has done so
 *   pstrain_destroy         always, whatever happened before
 *
 * The other way to use a job is as a service that sums arrays, for an optimizer that runs
 * in the workers (PyTorch's DistributedDataParallel): pstrain_open_reducer instead of
 * pstrain_open, then pstrain_start, and pstrain_reduce_begin and pstrain_reduce_end as
 * often as you like. A job does one or the other; a program may have several sessions,
 * each in a job of its own (its own address and servers).
 *
 * A tensor session whose optimizer.name is `sum` or `mean` is a third way: its arenas and
 * steps are those of a tensor session, but after a step pstrain_params holds the sum (or
 * the mean) of the workers' gradients of that step instead of weights.
 *
 * Beside all of this, workers may send each other bytes and reduce arrays among some of
 * them, without servers: pstrain_connect, pstrain_comm_create, pstrain_transfer_begin.
 *
 * ERRORS. Every function that can fail returns a pstrain_status, 0 for success.
 * pstrain_error() is a sentence that names what is at fault (worker, tensor, key) and how
 * to mend it. After PSTRAIN_ERR_ARG (a call at the wrong time, or a bad argument) nothing
 * has changed, except that a ticket or a collective of other ranks may still wait for
 * this one. After any other error the session has failed: only pstrain_abort,
 * pstrain_close (which says so) and pstrain_destroy may follow. A worker that fails
 * should call pstrain_abort with its reason: every other worker's waits then return
 * PSTRAIN_ERR_PEER with it. pstrain_destroy without pstrain_close ends the job for all,
 * too. When a worker or a server dies, all waits of all others return PSTRAIN_ERR_PEER
 * with its name.
 *
 * WAITS. Every wait has a deadline: net.join_timeout_ms (60 s) for joining, opening and
 * starting, net.step_timeout_ms (60 s without any progress) for the rest. Waits call
 * `interrupted` of the options every 100 ms or so.
 *
 * THREADS. Calls on one session may come from any thread, one at a time. A call that
 * overlaps another gives PSTRAIN_ERR_ARG. These may overlap all others: pstrain_abort,
 * pstrain_error, pstrain_should_stop, pstrain_stats_get, pstrain_transfer_begin and
 * pstrain_transfer_wait, and, among each other,
 * one thread's pstrain_reduce_begin, one other thread's pstrain_reduce_end, and one
 * thread's collectives. The library has threads of its own, which block all signals and
 * call nothing of the program's but the log. It installs no signal handler, changes no
 * limit and prints nothing. libzmq draws from rand(): use another generator where numbers
 * must repeat. SIGPIPE: sockets of all-reduce by Gloo may raise it; ignore
 * it there. After fork() the child must not use a session: calls give PSTRAIN_ERR_ARG,
 * and pstrain_destroy only forgets it.
 *
 * STRUCTS begin with their size, sizeof(the struct) as the program was compiled: later
 * versions add fields at the end, and take the missing ones as 0. Zero or NULL is the
 * default of every field. Pointers in them are borrowed during the call unless said
 * otherwise.
 */
#ifndef PSTRAIN_H
#define PSTRAIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PSTRAIN_API __attribute__((visibility("default")))
#else
#define PSTRAIN_API
#endif

/* Of this header. A library of the same major number (libpstrain.so.0) and the same or a
 * higher minor number fits. */
#define PSTRAIN_API_MAJOR 0
#define PSTRAIN_API_MINOR 5

/* --- status ------------------------------------------------------------------------ */

typedef enum pstrain_status {
    PSTRAIN_OK = 0,
    PSTRAIN_ERR_ARG = 1,    /* bad argument, or a call at the wrong time */
    PSTRAIN_ERR_CONFIG = 2, /* bad setting, or settings that contradict each other */
    PSTRAIN_ERR_IO = 3,
    PSTRAIN_ERR_FORMAT = 4,
    PSTRAIN_ERR_NOMEM = 5,
    PSTRAIN_ERR_NET = 6,
    PSTRAIN_ERR_TIMEOUT = 7,
    PSTRAIN_ERR_PROTOCOL = 8,
    PSTRAIN_ERR_PEER = 9, /* another member failed, ended the job, or does not fit */
    PSTRAIN_ERR_SHAPE = 10,
    PSTRAIN_ERR_NUMERIC = 11, /* a gradient that is not finite (exchange.nan=error) */
    PSTRAIN_ERR_UNSUPPORTED = 12,
    PSTRAIN_ERR_INTERRUPTED = 13, /* `interrupted` said so */
    PSTRAIN_ERR_INTERNAL = 14
} pstrain_status;

/* The message of this thread's last failed call; never NULL; valid until the thread's
 * next one. */
PSTRAIN_API const char *pstrain_error(void);
/* "CONFIG"; "?" for a number that is no status. */
PSTRAIN_API const char *pstrain_status_name(int status);
/* "0.1.0": of the library; servers and workers of a job need the same. */
PSTRAIN_API const char *pstrain_version(void);
/* Of the header that the library was built with: major * 1000 + minor. */
PSTRAIN_API int pstrain_api_version(void);

/* --- log --------------------------------------------------------------------------- */

typedef enum pstrain_log_level {
    PSTRAIN_LOG_DEBUG,
    PSTRAIN_LOG_INFO,
    PSTRAIN_LOG_WARN,
    PSTRAIN_LOG_ERROR
} pstrain_log_level;

/* Takes a line, "connection-mended to=shard-0 ...", without a newline, valid during the
 * call. Called by several threads at once, some of them the library's own. It must not
 * call the library. */
typedef void (*pstrain_log_fn)(void *ctx, int level, const char *line);

/* Of all sessions of the process (a log has no better place). Without it, and with NULL,
 * lines are dropped. Must be called while there is no session. */
PSTRAIN_API void pstrain_set_log(pstrain_log_fn log, void *ctx, int level);

/* --- create and join --------------------------------------------------------------- */

typedef struct pstrain_session pstrain_session;

/* Returns nonzero to end the call that waits: it returns PSTRAIN_ERR_INTERRUPTED. Called
 * by the thread that waits, every 100 ms or so. It must not call the library, except
 * pstrain_abort. */
typedef int (*pstrain_interrupted_fn)(void *ctx);

typedef struct pstrain_options {
    size_t struct_size; /* sizeof(pstrain_options) */
    /* Where the coordinator is: "tcp://host:port" (of server 0's host, of worker 0's
     * where there are no servers), "file:///path" on a file system that all see, or
     * "env://": tcp:// with MASTER_ADDR and MASTER_PORT, or PS_PORT instead of the
     * latter. With TORCHELASTIC_USE_AGENT_STORE=True and no PS_PORT the port is
     * MASTER_PORT + 1, because torchrun holds the other. NULL: env:// where MASTER_ADDR
     * is set or the job has another process; else none. */
    const char *init_method;
    /* 1 + the rank; 0: RANK, or, without it, any that is free. */
    int rank_plus_1;
    int world_size; /* workers; 0: WORLD_SIZE, or 1 without it */
    /* 1 + the number of server processes; 0: PS_SERVERS, or none without it. */
    int servers_plus_1;
    /* Settings as "key=value", e.g. "net.step_timeout_ms=20000", with the keys and
     * defaults of docs/configuration.md, of the sections net, optimizer, schedule,
     * loss_scale, exchange, server and rows. Those of net that joining needs must be
     * given here; the others may be given to pstrain_open as well. job.name names the
     * job: it must be the servers' ("job" if they name none). */
    const char *const *settings;
    int n_settings;
    pstrain_interrupted_fn interrupted; /* NULL: nothing interrupts. Kept */
    void *interrupted_ctx;              /* kept */
} pstrain_options;

/* *out is owned by the caller: pstrain_destroy. NULL after a failure. ARG, CONFIG: names
 * the setting or the variable. */
PSTRAIN_API int pstrain_create(const pstrain_options *options, pstrain_session **out);

/* Joins the job and waits until all its workers and servers have joined. TIMEOUT names
 * the members that are missing; PEER: this worker was refused, with the reason; NET.
 * A job of one worker without servers returns at once. */
PSTRAIN_API int pstrain_join(pstrain_session *s);

/* Rank and number of workers and servers; -1 before pstrain_join (rank alone). */
PSTRAIN_API int pstrain_rank(const pstrain_session *s);
PSTRAIN_API int pstrain_world_size(const pstrain_session *s);
PSTRAIN_API int pstrain_servers(const pstrain_session *s);

/* --- open: tensors and optimizer --------------------------------------------------- */

typedef enum pstrain_tensor_kind {
    PSTRAIN_PARAM = 0,          /* float32, trained */
    PSTRAIN_BUFFER_FLOAT32 = 1, /* not trained; rank 0's become everybody's */
    PSTRAIN_BUFFER_INT64 = 2    /* likewise */
} pstrain_tensor_kind;

typedef struct pstrain_tensor {
    const char *name;     /* "layer1.0.conv1.weight"; unique; for messages and the table's
                             comparison between ranks */
    const int64_t *shape; /* (n_dims), row-major, each at least 1 */
    int n_dims;           /* 0 (a scalar) to 16 */
    int kind;             /* pstrain_tensor_kind */
    int group;            /* parameter group, from 0; see pstrain_groups */
} pstrain_tensor;

/* The optimizer's numbers for a parameter group. Those that the optimizer does not have
 * are ignored. Formulas and roundings are PyTorch's. optimizer, name, centered, and
 * whether momentum is 0, stay what they are in the table. */
typedef struct pstrain_group {
    double lr;
    double momentum, dampening; /* sgd; rmsprop: momentum */
    double beta1, beta2, eps;   /* adam, adamw, lamb; lion: betas; adagrad: eps;
                                   rmsprop: eps, and beta2 is alpha */
    double weight_decay;
    int nesterov; /* sgd */
    /* Since 0.4: which of the program's optimizers it belongs to, from 0
     * (pstrain_begin_of). */
    int optimizer;
    /* Since 0.4: as optimizer.name, for this group; NULL: optimizer.name itself, and what
     * follows is that of the settings. lamb, sum and mean are for all groups or none. */
    const char *name;
    double lr_decay, initial_accumulator; /* adagrad */
    int centered;                         /* rmsprop */
    int reserved;                         /* 0 */
} pstrain_group;

/* A worker's state between two steps, for checkpoints. Arrays are arenas: as long as
 * pstrain_arena_count, laid out as pstrain_params. Memory is the program's. */
typedef struct pstrain_state {
    size_t struct_size; /* sizeof(pstrain_state) */
    uint64_t step;      /* steps made so far, skipped ones included */
    /* The optimizer's, pstrain_state_arrays of them; rank 0's count, NULL elsewhere. */
    float *arrays[4];
    /* The servers' exact weights: needed with exchange.codec, else NULL. Rank 0's. */
    float *weights;
    /* What this rank's codec has not sent yet: for the codecs int4, onebit and topk, of
     * every rank; else NULL. */
    float *feedback;
    size_t rule_bytes; /* 0: without a loss scale, and no step was skipped */
    uint8_t rule[64];  /* loss scale, skipped steps */
    /* (parameters) Of the steps that were not skipped, those that left each parameter as
     * it was (pstrain_push_none). Rank 0's; NULL: none did. Since 0.3. */
    uint64_t *missed;
} pstrain_state;

/* An embedding table, which lives on the servers alone and grows by 64-bit id: only the
 * rows that a batch needs travel. A row that no gradient has touched is a function of
 * seed, the table's index and id. Since 0.5. */
typedef struct pstrain_rows_table {
    const char *name; /* unique; the same on every rank, as all of this is */
    uint32_t dim;     /* elements of a row */
    /* "sgd", "adagrad", "sparse_adam": PyTorch's formulas for sparse gradients; or
     * "rowwise_adagrad": one sum of squares a row. Rows without a gradient stay. */
    const char *optimizer;
    double lr;                            /* of the first step; see pstrain_rows_push */
    double eps;                           /* all but sgd */
    double beta1, beta2;                  /* sparse_adam */
    double lr_decay, initial_accumulator; /* adagrad; rowwise_adagrad: the latter */
    /* First rows: "uniform" in [-scale, scale); "normal" with mean 0 and that standard
     * deviation; or "constant": scale itself. */
    const char *init;
    double scale;
    uint64_t seed;
    /* Of the whole table; 0: no bound. evicts 0: the job ends there, with the table's
     * name; 1: the rows whose last gradient is the oldest begin anew. */
    uint64_t max_bytes;
    int evicts;
    /* An id gets a row in the admit-th step that has a gradient for it, and begins anew
     * after `expire` steps without one. 0: at once, never. */
    uint32_t admit, expire;
    /* Rows that are looked up, and their gradients, travel as "fp16": half the bytes; or
     * "int8": a quarter, with a scale for each row. The servers keep float32. "none" or
     * NULL: float32. */
    const char *codec;
} pstrain_rows_table;

typedef struct pstrain_table {
    size_t struct_size;            /* sizeof(pstrain_table) */
    const pstrain_tensor *tensors; /* in the order of the model; the same on every rank */
    int n_tensors;
    size_t tensor_size; /* sizeof(pstrain_tensor) */
    /* The first numbers of the parameter groups, or none: then all tensors are of group
     * 0, with the numbers of optimizer.*. The same on every rank. With groups,
     * optimizer.lr, .momentum and so on are not used; optimizer.name, .clip_norm and
     * .pytorch are. */
    const pstrain_group *groups;
    int n_groups;
    size_t group_size; /* sizeof(pstrain_group) */
    /* More settings, after those of pstrain_create. All settings of the sections
     * optimizer, schedule, loss_scale and exchange (without exchange.shm) must be the
     * same on every rank; the servers take rank 0's. */
    const char *const *settings;
    int n_settings;
    /* Optimizer steps of the whole job, the same on every rank; 0: not known. Needed by
     * schedule.name cosine, linear, polynomial and onecycle without schedule.total, and
     * by the codecs' last steps. */
    uint64_t total_steps;
    /* Where the job goes on; NULL: it begins. Arrays are borrowed until pstrain_start
     * returns. Step and rule are rank 0's; every rank passes its own state, or those
     * other than 0 may pass NULL if there is no feedback. The weights go into
     * pstrain_params as for a new job. */
    const pstrain_state *resume;
    /* 1: the servers multiply each worker's gradient by 1 / world_size before they add
     * it, with the bits of a worker that does so before its push. pstrain_push says what
     * is to be pushed. Not with exchange.codec. 0: they do not. The same on every rank.
     */
    int mean;
    /* Embedding tables (pstrain_rows_pull). They need servers, and every step of theirs
     * every rank. With them a table may have no tensors at all. Since 0.5. */
    const pstrain_rows_table *rows;
    int n_rows;
    size_t rows_size; /* sizeof(pstrain_rows_table) */
} pstrain_table;

/* Checks that all ranks have the same table, groups and settings, tells the servers, and
 * makes the arenas. PEER when they differ, on every rank, with the rank and what differs
 * ("worker 1 has other tensors than worker 0: tensor 3 is fc.bias (10), not (11)").
 * Collective: every worker calls it, once, or again after pstrain_close_table. */
PSTRAIN_API int pstrain_open(pstrain_session *s, const pstrain_table *table);

/* From open on. The arenas: float32, zeroed, parameters in the order of the table; each
 * begins at a multiple of 16 elements (64 bytes), the gaps are 0 and must stay 0 (in the
 * parameters' arena an optimizer with an eps of 0 makes them NaN, as 0 / 0 is). They
 * stay at their place until pstrain_destroy or pstrain_arenas_free, and are shared with
 * servers of this host. Buffers: bytes. NULL before open. */
PSTRAIN_API float *pstrain_params(const pstrain_session *s);
PSTRAIN_API float *pstrain_grads(const pstrain_session *s);
PSTRAIN_API void *pstrain_buffers(const pstrain_session *s);
PSTRAIN_API uint64_t pstrain_arena_count(const pstrain_session *s); /* elements */
PSTRAIN_API uint64_t pstrain_buffer_bytes(const pstrain_session *s);
/* Where tensor `index` of the table begins: a parameter in elements of the arenas, a
 * buffer in bytes of pstrain_buffers. UINT64_MAX: no such tensor. */
PSTRAIN_API uint64_t pstrain_tensor_offset(const pstrain_session *s, int index);

/* Rank 0's parameters and buffers become everybody's. Blocks until they are here. Of the
 * other ranks nothing needs to be written before. Collective. */
PSTRAIN_API int pstrain_start(pstrain_session *s);

/* --- steps ------------------------------------------------------------------------- */

/* New numbers for the parameter groups, from the next pstrain_begin on (n: as many as the
 * table has; 1 where it has none). Cheap where nothing changed: call it in each step. A
 * server takes rank 0's; without servers every rank uses its own, so pass the same
 * everywhere. They replace schedule.*: the rate is then the group's. With n_groups 0 in
 * the table they count from the first call on. */
PSTRAIN_API int pstrain_set_groups(pstrain_session *s, const pstrain_group *groups, int n,
                                   size_t group_size);
/* The same, where only the rate of all groups changes. */
PSTRAIN_API int pstrain_set_lr(pstrain_session *s, double lr);

/* Begins the next step. Does not block, but after pstrain_begin_of, as that says. *step
 * (may be NULL): its number; 0 is a new job's first. */
PSTRAIN_API int pstrain_begin(pstrain_session *s, uint64_t *step);

/* The same for a step of one of the program's optimizers (pstrain_group.optimizer), for
 * programs that step them in turn (GANs). Parameters of the others must not be pushed:
 * they are left as they are, the step does not count for them, and nothing of them
 * travels. Blocks until their weights of the step before are here, and, as pstrain_begin
 * after it, those of parameters that the step before has left out. All ranks begin steps
 * of the same optimizers in the same order: PEER names those that do not. Since 0.4. */
PSTRAIN_API int pstrain_begin_of(pstrain_session *s, int optimizer, uint64_t *step);

/* In what follows, `first` and `n` are indices of parameters in the table, buffers not
 * counted (the k-th parameter has index k). */

/* Blocks until the weights of parameters [first, first + n) are those of the step that
 * has begun or begins next, i.e. after all steps before it. */
PSTRAIN_API int pstrain_wait(pstrain_session *s, int first, int n);
/* *here: 1 when pstrain_wait would not block, else 0. */
PSTRAIN_API int pstrain_ready(pstrain_session *s, int first, int n, int *here);

/* A sum of any memory, by which a program sees whether it was written meanwhile: what it
 * writes into pstrain_params is lost when the next weights come, and a gradient that has
 * been pushed is not pushed again. One changed element always changes the sum, several
 * are missed once in 2^32. NULL with 0 bytes is fine. Needs no session. Since 0.5. */
PSTRAIN_API uint32_t pstrain_checksum(const void *from, uint64_t bytes);

/* The gradients of these parameters are final. Each rank has multiplied its own by its
 * share: 1 / world_size for equal batches, n_r / (sum of all n) for others (with
 * pstrain_table.mean: by world_size times its share, so not at all for equal batches);
 * and by the loss scale where loss_scale.use is on. Each parameter is pushed once per
 * step, by one of these three functions. Gradients and weights then belong to
 * the library until the next pstrain_wait for them. Does not block. */
PSTRAIN_API int pstrain_push(pstrain_session *s, int first, int n);

/* As pstrain_push of one parameter, whose gradient is elsewhere: from[0 .. its elements),
 * each times factor, is copied to its place in pstrain_grads before. Large models bypass
 * the processor's caches. `from` may be written again afterwards; it is not the place
 * itself. Since 0.2. */
PSTRAIN_API int pstrain_push_copy(pstrain_session *s, int index, const float *from,
                                  float factor);

/* This worker has no gradient for these parameters in this step. One that no worker has a
 * gradient for is left as it is, and the step does not count for it; where some worker
 * has one, the others' count as zeros. Since 0.3. */
PSTRAIN_API int pstrain_push_none(pstrain_session *s, int first, int n);

/* Every parameter of the step has been pushed. May return before the step is made. ARG
 * names the first parameter that was not pushed; the step then goes on. */
PSTRAIN_API int pstrain_finish(pstrain_session *s);

/* Blocks until all weights are those after all finished steps. */
PSTRAIN_API int pstrain_drain(pstrain_session *s);

/* Where loss_scale.use is on: the scale for the gradients of the step that has begun or
 * begins next, and how many steps of the job were skipped so far (exact when called in
 * each step). Otherwise 1 and 0. Blocks until the finished steps are made. */
PSTRAIN_API int pstrain_loss_scale(pstrain_session *s, float *scale, uint64_t *skipped);

/* Rank 0's buffers become everybody's; with a codec also the exact weights. All ranks
 * call it between the same two steps; it drains. Before evaluation and saving. */
PSTRAIN_API int pstrain_sync(pstrain_session *s);

/* --- device: parameters on a GPU ---------------------------------------------------- */

/* A program whose parameters are on a GPU of CUDA has a second pair of arenas there, in
 * memory of its own. A thread of the library copies between both, a chunk at a time, on
 * two streams. It needs NVIDIA's driver, and nothing of CUDA else. Since 0.5, as all of
 * this section.
 *
 *   pstrain_open
 *   pstrain_device_open
 *     (rank 0 writes the first weights into pstrain_params, which is on the host)
 *   pstrain_start
 *   each step:
 *     pstrain_device_wait       before the program asks for what reads the weights
 *     pstrain_begin
 *     pstrain_device_push       when it has asked for what writes the gradient
 *     pstrain_finish
 *   pstrain_device_close        the arenas on the GPU may go
 *
 * Streams are CUDA's (cudaStream_t, CUstream) of this GPU's primary context, which is the
 * one of CUDA's runtime and of PyTorch; NULL: the default stream. pstrain_push,
 * pstrain_push_copy, pstrain_push_none and pstrain_wait are ARG errors then. Calls with
 * a stream that is being captured (CUDA graphs) are ARG errors: the replay would run
 * without the servers. */
typedef struct pstrain_device_options {
    size_t struct_size; /* sizeof(pstrain_device_options) */
    int ordinal;        /* of the GPU, as CUDA counts in this process */
    /* (parameters) of each one and its gradient on the GPU: PSTRAIN_FLOAT32, _FLOAT16 or
     * _BFLOAT16, which travel over the bus as they are; on the host they are float32.
     * NULL: all float32. */
    const int *dtypes;
    const char *driver; /* NULL: "libcuda.so.1" */
} pstrain_device_options;

/* Between pstrain_open and pstrain_start. UNSUPPORTED: there is no driver or GPU. Memory
 * that the system does not let it pin makes copies slower; the log says so. */
PSTRAIN_API int pstrain_device_open(pstrain_session *s,
                                    const pstrain_device_options *options);
/* Bytes of each arena on the GPU, and where parameter `index` begins: at a multiple of
 * 64. 0 and UINT64_MAX: there is no device, or parameter. */
PSTRAIN_API uint64_t pstrain_device_bytes(const pstrain_session *s);
PSTRAIN_API uint64_t pstrain_device_offset(const pstrain_session *s, int index);
/* Their addresses on the GPU, zeroed. The memory stays until pstrain_device_close, or
 * pstrain_destroy. Must be called before the first wait. */
PSTRAIN_API int pstrain_device_arenas(pstrain_session *s, uint64_t params,
                                      uint64_t grads);
/* What `stream` is given from now on runs with the weights of parameters [first,
 * first + n) after all finished steps. Blocks until the copies have been asked for, not
 * until they are made. */
PSTRAIN_API int pstrain_device_wait(pstrain_session *s, int first, int n, void *stream);
/* What `stream` was given so far writes the gradient of the parameter into its place of
 * the GPU's arena. It counts times factor. Does not block. */
PSTRAIN_API int pstrain_device_push(pstrain_session *s, int index, void *stream,
                                    float factor);
/* As pstrain_push_none. */
PSTRAIN_API int pstrain_device_push_none(pstrain_session *s, int first, int n,
                                         void *stream);
/* Blocks until no copy is on its way. Steps are over then. TIMEOUT: some still are, and
 * the arenas on the GPU have to stay until pstrain_destroy. */
PSTRAIN_API int pstrain_device_close(pstrain_session *s);

/* --- state_dict -------------------------------------------------------------------- */

/* Arrays of optimizer state per parameter, the most that any group has: sgd 0, with
 * momentum 1, adam and adamw 2, rmsprop 1 to 3, adagrad and lion 1, mean and sum 0. */
PSTRAIN_API int pstrain_state_arrays(const pstrain_session *s);
/* PyTorch's word for array i of the first group's optimizer, such as "momentum_buffer" or
 * "exp_avg_sq"; NULL: none. */
PSTRAIN_API const char *pstrain_state_name(const pstrain_session *s, int i);
/* Whether pstrain_state.feedback is needed from every rank. */
PSTRAIN_API int pstrain_state_has_feedback(const pstrain_session *s);
/* Fills the arrays that are given (struct_size and pointers set by the caller; on ranks
 * other than 0 only feedback), step and rule. All ranks call it between the same two
 * steps; it drains. The weights are in pstrain_params (after pstrain_sync with a codec).
 * PyTorch's `step` of a parameter is state.step minus the skipped and its missed steps.
 */
PSTRAIN_API int pstrain_save(pstrain_session *s, pstrain_state *state);

/* --- another table ----------------------------------------------------------------- */

typedef struct pstrain_arenas pstrain_arenas;

/* Gives up the table, between two steps: pstrain_open follows with another one, which may
 * have more tensors and groups, and goes on from what pstrain_save gave before
 * (pstrain_table.resume, with rooms of the new arenas' size; a tensor that is new has
 * missed all steps). Collective, drains. All workers add the same tensors after the same
 * step: otherwise the error names those that do not. *arenas owns the arenas of the table
 * before, which stay where they are: pstrain_arenas_free. A device is closed, too. Since
 * 0.5. */
PSTRAIN_API int pstrain_close_table(pstrain_session *s, pstrain_arenas **arenas);
/* At any time, also after pstrain_destroy; *arenas becomes NULL. */
PSTRAIN_API void pstrain_arenas_free(pstrain_arenas **arenas);

/* --- rows of embedding tables. Since 0.5 -------------------------------------------- */

/* Their steps are counted apart from those of the tensors: any number of lookups, the
 * gradients of their results, and pstrain_rows_push. A lookup sees the rows after all
 * steps before its own. A worker's gradient of a row is the sum over its lookups, in
 * their order; those of the workers are added in rank order. */

typedef enum pstrain_rows_mode {
    PSTRAIN_ROWS_EACH, /* out: (n_ids, dim) */
    PSTRAIN_ROWS_SUM,  /* of each bag: (n_bags, dim) */
    PSTRAIN_ROWS_MEAN  /* likewise; an empty bag is 0 */
} pstrain_rows_mode;

typedef struct pstrain_rows_lookup {
    size_t struct_size; /* sizeof(pstrain_rows_lookup) */
    int table;          /* its index */
    int mode;           /* pstrain_rows_mode */
    const int64_t *ids; /* (n_ids), from 0; borrowed during the call */
    uint64_t n_ids;
    uint64_t n_rows; /* ids are below it; 0: any */
    /* (n_bags) Where each bag begins in ids: from 0, not falling. NULL: all bags have
     * equally many. */
    const int64_t *offsets;
    uint64_t n_bags;
    const float *weights; /* (n_ids) with SUM: factors of the rows; NULL: 1 */
    /* Where has_padding is 1: lookups of this id count in no bag, and have no gradient.
     */
    int has_padding;
    int64_t padding;
    float *out;
} pstrain_rows_lookup;

/* Looks rows up: one message to each server thread for all n lookups. trains: gradients
 * may follow, under the ticket, with the index in `lookups`; 0: they will not. Blocks. */
PSTRAIN_API int pstrain_rows_pull(pstrain_session *s, const pstrain_rows_lookup *lookups,
                                  int n, int trains, uint64_t *ticket);
/* Asks for the rows of lookups of the next step, of which table, ids, n_ids, n_rows and
 * padding count; the pull of just these waits less, and sees the same rows. Shards read
 * what the present step does not change at once, and the rest when it is applied. After
 * all lookups of this step with gradients, at most four times. Does not block for long.
 */
PSTRAIN_API int pstrain_rows_prefetch(pstrain_session *s,
                                      const pstrain_rows_lookup *lookups, int n);
/* Lookups do not use what was asked ahead, but ask anew. Every rank calls it when one has
 * called pstrain_rows_load or pstrain_rows_restore. Does not block. */
PSTRAIN_API int pstrain_rows_forget_ahead(pstrain_session *s);
/* grad: of `out` of a lookup of this step; added to what there is. weights_grad
 * (n_ids; NULL: not wanted): of its weights. Does not block. */
PSTRAIN_API int pstrain_rows_gradient(pstrain_session *s, uint64_t ticket, int index,
                                      const float *grad, float *weights_grad);
/* The same for the first n lookups at once. A lookup without a gradient has NULL in
 * grads. weights_grads may be NULL: the gradients of weights are not computed then. */
PSTRAIN_API int pstrain_rows_gradients(pstrain_session *s, uint64_t ticket, int n,
                                       const float *const *grads,
                                       float *const *weights_grads);
/* No gradients of the ticket follow; frees what it holds. */
PSTRAIN_API int pstrain_rows_forget(pstrain_session *s, uint64_t ticket);
/* Drops the gradients of the table's rows that this rank has given in this step (of a bad
 * batch); table -1: those of all tables. Tickets stay: gradients of these lookups may
 * follow. Does not block. ARG: there is no such table. */
PSTRAIN_API int pstrain_rows_drop_gradients(pstrain_session *s, int table);
/* Ends the step of the rows: every rank calls it, whether it has looked anything up or
 * not. share: the gradients are multiplied by it. lr (tables): of each; rank 0's count.
 * Rows of lookups without any gradient stay. Blocks until the push before is applied. */
PSTRAIN_API int pstrain_rows_push(pstrain_session *s, float share, const double *lr);
/* How many steps of the rows have been pushed. */
PSTRAIN_API uint64_t pstrain_rows_steps(const pstrain_session *s);

/* Elements of a row with its optimizer's state: the row comes first. 0: no such table. */
PSTRAIN_API uint32_t pstrain_rows_width(const pstrain_session *s, int table);

/* out (n, dim): first rows, those of ids that no gradient has touched; what a reader of
 * exported rows gives for ids that are not among them. Needs no session, does not block.
 * table_size: sizeof(pstrain_rows_table). index: the table's in the job. */
PSTRAIN_API int pstrain_rows_first(const pstrain_rows_table *table, size_t table_size,
                                   int index, const int64_t *ids, uint64_t n, float *out);

/* Rows of a table for the servers, between two steps of the rows: distinct ids (n),
 * values (n, dim), or with state (n, pstrain_rows_width). steps: of the table, which
 * sparse_adam counts. One rank does it, between two pstrain_barriers of all. Blocks. What
 * was asked ahead is of the rows before: pstrain_rows_forget_ahead. */
PSTRAIN_API int pstrain_rows_load(pstrain_session *s, int table, const int64_t *ids,
                                  uint64_t n, const float *values, int with_state,
                                  uint64_t steps);

typedef struct pstrain_rows_age {
    uint32_t version; /* the table's clock after the last gradient */
    uint32_t count; /* of an id that is not admitted yet: steps with a gradient; else 0 */
} pstrain_rows_age;

/* Rows that a table has, a page at a time. Blocks. */
typedef struct pstrain_rows_page {
    size_t struct_size; /* sizeof(pstrain_rows_page) */
    uint64_t next;      /* 0 for the first page; then as it was left; 0 again: the last */
    uint64_t n;         /* rows of this page; may be 0 before the last one */
    const int64_t *ids; /* (n + n_candidates): of the rows, then of ids that are not
                           admitted yet. These, values and ages belong to the session
                           until the next page */
    const float *values; /* (n, pstrain_rows_width) */
    uint64_t steps;      /* of the table */
    uint64_t n_candidates;
    const pstrain_rows_age *ages; /* (n + n_candidates) */
    uint64_t clock;               /* of the table: one more in each step of the rows */
} pstrain_rows_page;
PSTRAIN_API int pstrain_rows_save(pstrain_session *s, int table, pstrain_rows_page *page);
/* Gives a table what such a page has, of this job or another one, with the clock and ages
 * that admit, expire and evicts go by. first: all that the table has goes before; 0: the
 * page is added. clock 0: the rows are as if the step before had made them. One rank does
 * it, between two pstrain_barriers of all, between two steps of the rows. Blocks. ARG: a
 * version above the clock, a wrong count, a negative id. */
PSTRAIN_API int pstrain_rows_restore(pstrain_session *s, int table,
                                     const pstrain_rows_page *page, int first);

/* Writes all rows of n tables into a safetensors file: of each NAME.ids, int64 in rising
 * order, and NAME.weight, float32 (ids, dim). The same bytes for any number of servers. A
 * file that is there stays until the new one is whole. Meanwhile the rows lie in files
 * without names beside it: memory does not depend on the tables. Between two steps of the
 * rows; one rank is enough. about: the value of the metadata `pstrain.tables`; NULL:
 * none. Blocks. ARG: the file cannot be written; the job can go on. Since 0.5. */
PSTRAIN_API int pstrain_rows_export(pstrain_session *s, const char *path,
                                    const int *tables, int n, const char *about);

/* A point to which all tables can go back: rows never pass through workers then. The
 * servers keep what they need for the last two points in memory, as long as their
 * processes live, also when the job fails and they join it again (recovery.rejoins). */
typedef struct pstrain_rows_point {
    size_t struct_size;   /* sizeof(pstrain_rows_point) */
    uint64_t point;       /* its name: another one each time, 1 to 2^63 - 1 */
    int writes;           /* pstrain_rows_writes */
    const char *folder;   /* of files, from "/" on, of the servers' hosts */
    const char *name;     /* each server writes "<folder>/<name>-<table>-<shard>" */
    const char *manifest; /* out: JSON that names the point and all files with their
                             checksums; belongs to the session until the next point */
    const char *fault;    /* out: why a server could not write its files; "": it could */
} pstrain_rows_point;

typedef enum pstrain_rows_writes {
    PSTRAIN_ROWS_WRITE_NONE,
    PSTRAIN_ROWS_WRITE_FULL,
    PSTRAIN_ROWS_WRITE_FIRST,  /* full, and files with changes are to follow */
    PSTRAIN_ROWS_WRITE_CHANGES /* what has changed since the last FIRST. The manifest
                                  names that one's files, too: keep them */
} pstrain_rows_writes;

/* Between two steps of the rows. One rank calls it, the others wait at a pstrain_barrier.
 * Blocks. Writing takes less than net.step_timeout_ms. */
PSTRAIN_API int pstrain_rows_keep(pstrain_session *s, pstrain_rows_point *point);
/* Back to a point: from the servers' memory, or from the files that its manifest names,
 * for any number of servers. Every rank calls it, whatever it has made of the present
 * step, which is forgotten. Blocks until all have; rank 0's folder and manifest count.
 * ARG, on every rank: no server has the point, and there are no files; the job can go on.
 * Others name the file that is damaged or missing. */
PSTRAIN_API int pstrain_rows_return(pstrain_session *s, const char *folder,
                                    const char *manifest);
/* From join on: whether the servers have kept the point of that name since an earlier
 * start of the workers. Blocks until all have told. */
PSTRAIN_API int pstrain_rows_kept(pstrain_session *s, uint64_t point, int *kept);

/* --- reading rows of a job that runs. Since 0.5 ------------------------------------- */

/* A reader is no member of the job, needs no session, and changes nothing. It asks the
 * coordinator for the servers. Each server thread answers between two steps: all its rows
 * of one answer have made the same steps. A call is one message to each of them, or
 * several where it has many ids. After lost connections, and where the job is started
 * again with the same tables, it connects anew, within timeout_ms of each call. One
 * thread at a time. */
typedef struct pstrain_rows_reader pstrain_rows_reader;

typedef struct pstrain_rows_reader_options {
    size_t struct_size;  /* sizeof(pstrain_rows_reader_options) */
    const char *address; /* of the job: tcp://host:port, or file:///path */
    const char *job;     /* its name, job.name; NULL: any */
    const char *keys; /* of a job with keys: the folder that has worker.key, or the text
                         of that file; NULL: none */
    uint64_t timeout_ms;                /* of each call; 0: 30000 */
    pstrain_interrupted_fn interrupted; /* as in pstrain_options; NULL: none */
    void *interrupted_ctx;
} pstrain_rows_reader_options;

/* Blocks. *out is owned by the caller. PEER: the job lets no readers in (with
 * --insecure), is another one, has ended, or has no embedding tables. TIMEOUT says what
 * was waited for: nobody listens at the address, members are missing; after a second the
 * log says so, too. PEER also where what listens there is no coordinator, or one of a job
 * with keys, and none are given. */
PSTRAIN_API int pstrain_rows_reader_open(const pstrain_rows_reader_options *options,
                                         pstrain_rows_reader **out);
PSTRAIN_API void pstrain_rows_reader_close(pstrain_rows_reader **reader);

/* How many tables the job has. */
PSTRAIN_API int pstrain_rows_reader_tables(const pstrain_rows_reader *reader);
/* *table: what the table of that index is; its texts are the reader's. table_size:
 * sizeof(pstrain_rows_table). ARG: there is no such table. */
PSTRAIN_API int pstrain_rows_reader_table(const pstrain_rows_reader *reader, int index,
                                          pstrain_rows_table *table, size_t table_size);

typedef struct pstrain_rows_read {
    int table;          /* index; each once in a call */
    const int64_t *ids; /* (n) from 0 on */
    uint64_t n;
    float *out; /* (n, dim): rows; those that no gradient has reached are first rows */
} pstrain_rows_read;

/* n reads of read_size, sizeof(pstrain_rows_read). steps (may be NULL): how many steps
 * the rows have made at least, and at most. Blocks. ARG: no such table, a negative id.
 * SHAPE: the job was started again with other tables. TIMEOUT: it has ended, or does not
 * answer. The reader can be used again after any error. */
PSTRAIN_API int pstrain_rows_reader_read(pstrain_rows_reader *reader,
                                         const pstrain_rows_read *reads, int n,
                                         size_t read_size, uint64_t steps[2]);

/* --- the reducer: sums of arrays of any size --------------------------------------- */

typedef struct pstrain_reducer {
    size_t struct_size; /* sizeof(pstrain_reducer) */
    /* Of float32 that may be on the way at once; more waits for its turn. 0: 64 MiB. The
     * same on every rank. Worker and servers each need about that much memory, servers
     * world_size + 1 times. */
    uint64_t bytes;
    const char *const *settings; /* as pstrain_table's: exchange.codec none, fp16, bf16,
                                    int8; exchange.nan is `allow` here unless given */
    int n_settings;
} pstrain_reducer;

/* Instead of pstrain_open: the job's servers sum arrays. Needs servers, or a world size
 * of 1. Collective. Then pstrain_start. There are no arenas, steps and states. */
PSTRAIN_API int pstrain_open_reducer(pstrain_session *s, const pstrain_reducer *options);

/* values (n float32) become the sum over all ranks, added in rank order:
 * ((v0 + v1) + v2) + ..., the same bits on every rank, and for 2 ranks those of Gloo. All
 * ranks call it in the same order with the same n. values belong to the library until
 * pstrain_reduce_end of the ticket returns. Copies the values and returns; blocks only
 * when more is on the way than the reducer holds. Tickets are 1, 2, 3, ... With
 * exchange.codec the sum is that of the codec; the integers of other types are for
 * pstrain_all_reduce. */
PSTRAIN_API int pstrain_reduce_begin(pstrain_session *s, float *values, uint64_t n,
                                     uint64_t *ticket);
/* Blocks until the ticket's sum is in its values. Tickets end in order: those before it
 * are complete then, too. PEER when the ranks gave different sizes (found out without a
 * codec only). */
PSTRAIN_API int pstrain_reduce_end(pstrain_session *s, uint64_t ticket);

/* --- collectives, from join on ------------------------------------------------------ */

/* Every worker calls the same ones in the same order with the same sizes; where they
 * differ, ARG on every worker says who calls what. They go through the
 * coordinator, bytes unchanged: good for small things (1 KB: less than a millisecond on
 * one host) and for the broadcast of a model. */

/* Returns when every worker has called it. */
PSTRAIN_API int pstrain_barrier(pstrain_session *s);

/* root's `bytes` at data become everybody's. */
PSTRAIN_API int pstrain_broadcast(pstrain_session *s, void *data, uint64_t bytes,
                                  int root);

/* out (world_size * bytes): every rank's `bytes` at in, in rank order. */
PSTRAIN_API int pstrain_all_gather(pstrain_session *s, const void *in, uint64_t bytes,
                                   void *out);

typedef enum pstrain_dtype {
    PSTRAIN_FLOAT32,
    PSTRAIN_FLOAT64,
    PSTRAIN_INT8,
    PSTRAIN_UINT8, /* and bool: MAX is or, MIN is and */
    PSTRAIN_INT16,
    PSTRAIN_INT32,
    PSTRAIN_INT64,
    PSTRAIN_FLOAT16, /* halves are reduced in float32, and rounded once. Since 0.4 */
    PSTRAIN_BFLOAT16
} pstrain_dtype;

typedef enum pstrain_op {
    PSTRAIN_SUM,
    PSTRAIN_MIN,
    PSTRAIN_MAX,
    PSTRAIN_PRODUCT,
    PSTRAIN_AVG,  /* the sum over the number of ranks; integers towards 0. Since 0.4 */
    PSTRAIN_BAND, /* bits, of integers */
    PSTRAIN_BOR,
    PSTRAIN_BXOR
} pstrain_op;

/* values (n of dtype) become the reduction over all ranks, in the type itself and in rank
 * order: integers are exact (and wrap around as in two's complement). Large float32 sums
 * are faster by pstrain_reduce_begin, with the same bits. */
PSTRAIN_API int pstrain_all_reduce(pstrain_session *s, void *values, uint64_t n,
                                   int dtype, int op);

/* --- transfers: between workers, and among some of them ------------------------------
 */

/* Makes links from this worker to all others: shared memory on one host (exchange.shm),
 * TCP between hosts, with the job's keys. Collective. Any number of transfers then go on
 * beside each other, and beside all other calls: in the thread that waits for one of
 * them, and where none does, in a thread of the library. A transfer of which nothing
 * moves for net.step_timeout_ms fails. A second call does nothing. Since 0.4, as all of
 * this section. */
PSTRAIN_API int pstrain_connect(pstrain_session *s);
/* Whether all workers share memory. */
PSTRAIN_API int pstrain_is_one_host(const pstrain_session *s);

/* A communicator: some of the workers, which have ranks of their own in it. */
typedef struct pstrain_comm pstrain_comm;

/* ranks (n): the members' ranks in the job, in the order of their own. number: the same
 * in all members, and never another communicator's in the job. Does not block. *out is
 * owned by the caller: pstrain_comm_destroy. */
PSTRAIN_API int pstrain_comm_create(pstrain_session *s, uint64_t number, const int *ranks,
                                    int n, pstrain_comm **out);
/* After all its transfers have ended, and before pstrain_destroy. */
PSTRAIN_API void pstrain_comm_destroy(pstrain_comm **comm);

typedef enum pstrain_call {
    PSTRAIN_CALL_SEND,
    PSTRAIN_CALL_RECV,
    PSTRAIN_CALL_BARRIER,
    PSTRAIN_CALL_BROADCAST,
    PSTRAIN_CALL_ALL_GATHER,
    PSTRAIN_CALL_GATHER,
    PSTRAIN_CALL_SCATTER,
    PSTRAIN_CALL_ALL_TO_ALL,
    PSTRAIN_CALL_ALL_REDUCE, /* from here on: reductions */
    PSTRAIN_CALL_REDUCE,
    PSTRAIN_CALL_REDUCE_SCATTER
} pstrain_call;

/* What one member does with another, or with itself (then: a copy). */
typedef struct pstrain_part {
    const void *send;
    uint64_t send_bytes;
    void *recv;
    uint64_t recv_bytes;
} pstrain_part;

typedef struct pstrain_transfer_options {
    size_t struct_size; /* sizeof(pstrain_transfer_options) */
    /* pstrain_call: names the transfer in messages. All members have to call the same,
     * in the same order within a communicator, except SEND and RECV. */
    int call;
    int root;     /* if there is one; members have to agree on it */
    int peer;     /* SEND, RECV: the other member; RECV: -1 is any */
    uint64_t tag; /* SEND, RECV: those with the same tag match, in their order */
    /* By member, as many as the communicator has; for SEND and RECV one; for BARRIER
     * none. What one member sends to another has as many bytes as that one receives from
     * it; 0: nothing. In a reduction `send` is that member's slice of this one's values
     * (the slices have the same sizes in all members), and `recv` where the reduced slice
     * goes: of this member's own part, and, where gathers is 1, of the others' too. It
     * may be where `send` is. */
    const pstrain_part *parts;
    int gathers;
    /* Of reductions: pstrain_dtype, pstrain_op. Of other calls dtype is a number from 0 to
     * 255 that the caller chooses, and members have to agree on. */
    int dtype, op;
} pstrain_transfer_options;

typedef struct pstrain_transfer pstrain_transfer;

/* Begins a transfer and returns. The memory of the parts belongs to the library until it
 * is done. *out is owned by the caller: pstrain_transfer_end. Reductions are in rank
 * order, with the same bits in all members. Any thread. */
PSTRAIN_API int pstrain_transfer_begin(pstrain_comm *comm,
                                       const pstrain_transfer_options *options,
                                       pstrain_transfer **out);
/* Blocks for ms at most: *done. ARG: members call different things, and this transfer is
 * over; others may still wait. Any other error: the session has failed. Any thread. */
PSTRAIN_API int pstrain_transfer_wait(pstrain_transfer *t, int ms, int *done);
/* Of a RECV that is done: the member that has sent it. */
PSTRAIN_API int pstrain_transfer_from(const pstrain_transfer *t);
/* Frees it, once it is done; *t becomes NULL. ARG while it is not. */
PSTRAIN_API int pstrain_transfer_end(pstrain_transfer **t);

/* --- the end ----------------------------------------------------------------------- */

/* Nonzero once the servers or psrun have asked all workers to end in order (Ctrl-C,
 * SIGTERM): finish the step, save, close. Never blocks. */
PSTRAIN_API int pstrain_should_stop(const pstrain_session *s);

/* Ends in order: drains, says goodbye to the servers, waits until every worker has
 * called it. A second call, or one after a failure, is an ARG error. */
PSTRAIN_API int pstrain_close(pstrain_session *s);

/* Ends the job for everybody, with the reason; returns at once. This session's waits, in
 * other threads too, return PEER. Any thread. NULL: nothing. */
PSTRAIN_API void pstrain_abort(pstrain_session *s, const char *reason);

/* Frees the session; *s becomes NULL. Without pstrain_close before, the others learn that
 * this worker is gone, and the job ends for them. No other call may run meanwhile. */
PSTRAIN_API void pstrain_destroy(pstrain_session **s);

/* --- figures ----------------------------------------------------------------------- */

typedef struct pstrain_stats {
    size_t struct_size;                  /* sizeof(pstrain_stats), set by the caller */
    uint64_t steps;                      /* finished, by this session, of all tables */
    uint64_t bytes_sent, bytes_received; /* payload and headers, this worker */
    uint64_t raw_bytes;                  /* what bytes_sent would be without a codec */
    uint64_t shm_sent, shm_received;     /* payload passed in shared memory instead */
    double wait_seconds;                 /* in pstrain_wait and pstrain_drain */
} pstrain_stats;

/* Since the last pstrain_start; zeros before. */
PSTRAIN_API int pstrain_stats_get(const pstrain_session *s, pstrain_stats *out);

#ifdef __cplusplus
}
#endif

#endif
