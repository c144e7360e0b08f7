#include "pstrain_device.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "absent.h"
#include "codec.h"
#include "floats.h"
#include "interrupt.h"
#include "log.h"
#include "mem.h"
#include "pstrain_driver.h"
#include "pstrain_state.h"
#include "thread.h"

enum { ALIGNED = 64, LOOK_MS = 100, LEAVE_MS = 5000 };
// The driver's numbers.
enum { STREAM_APART = 1, EVENT_UNTIMED = 2, CAPTURE_RELAXED = 2 };

/* Of a chunk, in the order of a step. The program's thread sets GIVEN, the GPU LANDED,
 * the library's thread the others. */
typedef enum device_stage {
    ON_DEVICE, // its weights on the GPU are, or will be, the newest
    STALE,     // the host has others
    FILLING,   // a step has begun
    GIVEN,     // all its gradients are pushed
    LEAVING,   // on their way to the host
    LANDED,    // there
    SENT,      // in the session's hands
} device_stage;

typedef struct device_chunk {
    struct pstrain_device *device;
    const ps_chunk *plan;
    uint64_t at, bytes; // of the GPU's arenas
    bool narrow;        // has a tensor that is not float32
    bool some;          // one of its gradients is there
    int left;           // tensors whose gradients are not given yet
    device_stage stage;
    cuda_event arrived; // its weights
    uint64_t number;    // of their copy; 0: there was none
} device_chunk;

typedef struct device_tensor {
    uint64_t at; // of the GPU's arenas
    ps_codec as; // how its elements are there
    bool given, lacks;
    float factor;
    cuda_event pushed;
    uint32_t first_chunk, last_chunk;
} device_tensor;

typedef struct device_pinned {
    void *at; // NULL: none
    size_t bytes;
} device_pinned;

struct pstrain_device {
    pstrain_session *session;
    pstrain_driver cuda;
    int id;
    cuda_context context; // NULL: not retained
    cuda_stream out, in, told;
    cuda_event landed; // of the newest gradient
    cuda_event read;   // what a stream was given before weights are renewed
    uint64_t bytes;
    uint64_t params, grads;                    // the GPU's arenas
    ps_shared_mem narrow_params, narrow_grads; // as on the GPU, in host memory; or none
    device_pinned pinned[4];
    device_chunk *chunks;
    device_tensor *tensors;
    uint32_t n_chunks;
    int n_tensors;

    ps_thread thread;
    pthread_mutex_t lock; // of what follows, and of the stages; never held in CUDA
    pthread_cond_t work, progress;
    bool ends, finishing, busy;
    uint64_t moves;  // grows with all that happens
    uint64_t copies; // of weights
    uint32_t *given; // chunks, in their order
    uint32_t n_given, n_taken;
    uint32_t n_unsent; // chunks of the step that are not sent
    ps_err_saved failure;
};

typedef struct pstrain_device device;

/* --- memory ------------------------------------------------------------------------ */

static void *device_host_params(const device *d)
{
    return ps_session_params(d->session->session);
}

static void *device_host_grads(const device *d)
{
    return ps_session_grads(d->session->session);
}

static const ps_tensor *device_table(const device *d)
{
    return d->session->own.table.tensors;
}

/* Whole pages, which have no neighbours. A child of fork(), such as a process that loads
 * data, does not get them: the kernel would copy pinned pages for it at once, and an old
 * one gives the copies to this process, while the GPU keeps the pages. A refusal to pin
 * only makes copies slower. */
static void device_pin(device *d, int i, void *memory, uint64_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!memory) return;
    if (pstrain_driver_check(&d->cuda, d->cuda.pin(memory, bytes, 0), "pin") == PS_OK) {
        d->pinned[i] = (device_pinned){memory, (bytes + page - 1) / page * page};
        (void)madvise(memory, d->pinned[i].bytes, MADV_DONTFORK);
    } else
        PS_WARN("memory-not-pinned",
                "bytes=%" PRIu64 " effect=\"copies to and from the GPU are 5 to 10 times "
                "slower\" mend=\"ulimit -l unlimited; a container: --ulimit memlock=-1\" "
                "reason=\"%s\"",
                bytes, ps_err_message());
}

static void device_unpin(device *d, device_pinned *p)
{
    if (!p->at) return;
    (void)madvise(p->at, p->bytes, MADV_DOFORK);
    d->cuda.unpin(p->at);
    p->at = NULL;
}

/* Of a chunk's part of a tensor: where it is on the host and in memory like the GPU's. */
typedef struct device_part {
    const device_tensor *tensor;
    uint64_t first, n; // elements of the arena
    uint64_t at;       // bytes of the GPU's arena
} device_part;

static device_part device_part_of(const device *d, const ps_chunk *chunk, int t)
{
    uint64_t begin, end;
    ps_chunk_overlap(chunk, &device_table(d)[t], &begin, &end);
    const device_tensor *tensor = &d->tensors[t];
    return (device_part){.tensor = tensor,
                         .first = device_table(d)[t].offset + begin,
                         .n = end - begin,
                         .at = tensor->at + ps_codec_bytes(tensor->as, begin, 0)};
}

/* --- opening ----------------------------------------------------------------------- */

static void device_lay_out(device *d, const int *dtypes)
{
    static const ps_codec of[] = {[PSTRAIN_FLOAT32] = PS_CODEC_NONE,
                                  [PSTRAIN_FLOAT16] = PS_CODEC_FP16,
                                  [PSTRAIN_BFLOAT16] = PS_CODEC_BF16};
    for (int t = 0; t < d->n_tensors; t++) {
        d->tensors[t].as = dtypes ? of[dtypes[t]] : PS_CODEC_NONE;
        d->tensors[t].at = d->bytes;
        d->bytes += (ps_codec_bytes(d->tensors[t].as, device_table(d)[t].count, 0) +
                     ALIGNED - 1) &
                    ~(uint64_t)(ALIGNED - 1);
        d->tensors[t].first_chunk = UINT32_MAX;
    }
}

static ps_err device_place_chunks(device *d, const ps_plan *plan)
{
    for (uint32_t c = 0; c < d->n_chunks; c++) {
        device_chunk *chunk = &d->chunks[c];
        *chunk = (device_chunk){.device = d, .plan = &plan->chunks[c], .stage = STALE};
        for (int t = chunk->plan->first_tensor; t <= chunk->plan->last_tensor; t++) {
            device_tensor *tensor = &d->tensors[t];
            chunk->narrow |= tensor->as != PS_CODEC_NONE;
            if (tensor->first_chunk == UINT32_MAX) tensor->first_chunk = c;
            tensor->last_chunk = c;
        }
        const device_part first =
            device_part_of(d, chunk->plan, chunk->plan->first_tensor);
        const device_part last = device_part_of(d, chunk->plan, chunk->plan->last_tensor);
        chunk->at = first.at;
        chunk->bytes = last.at + ps_codec_bytes(last.tensor->as, last.n, 0) - first.at;
        CUDA_TRY(&d->cuda, event_create, &chunk->arrived, EVENT_UNTIMED);
    }
    return PS_OK;
}

static ps_err device_make_streams(device *d)
{
    int least, greatest;
    CUDA_TRY(&d->cuda, priorities, &least, &greatest);
    CUDA_TRY(&d->cuda, stream_create, &d->out, STREAM_APART, greatest);
    CUDA_TRY(&d->cuda, stream_create, &d->in, STREAM_APART, greatest);
    CUDA_TRY(&d->cuda, stream_create, &d->told, STREAM_APART, greatest);
    CUDA_TRY(&d->cuda, event_create, &d->landed, EVENT_UNTIMED);
    CUDA_TRY(&d->cuda, event_create, &d->read, EVENT_UNTIMED);
    for (int t = 0; t < d->n_tensors; t++)
        CUDA_TRY(&d->cuda, event_create, &d->tensors[t].pushed, EVENT_UNTIMED);
    return PS_OK;
}

static ps_err device_make_memory(device *d)
{
    const uint64_t host = d->session->own.table.arena_count * sizeof(float);
    bool narrow = false;
    for (int t = 0; t < d->n_tensors; t++)
        narrow |= d->tensors[t].as != PS_CODEC_NONE;
    if (narrow) {
        PS_TRY(ps_shared_mem_init_private(&d->narrow_params, d->bytes,
                                          "weights for the GPU"));
        PS_TRY(ps_shared_mem_init_private(&d->narrow_grads, d->bytes,
                                          "gradients of the GPU"));
    }
    device_pin(d, 0, device_host_params(d), host);
    device_pin(d, 1, device_host_grads(d), host);
    device_pin(d, 2, d->narrow_params.base, d->bytes);
    device_pin(d, 3, d->narrow_grads.base, d->bytes);
    return PS_OK;
}

/* With the GPU's context current in this thread. */
static ps_err device_make_all(device *d)
{
    PS_TRY(device_make_streams(d));
    PS_TRY(device_place_chunks(d, ps_session_plan(d->session->session)));
    return device_make_memory(d);
}

static ps_err device_take_gpu(device *d, const pstrain_device_options *o)
{
    cuda_context before;
    PS_TRY(pstrain_driver_load(&d->cuda, o->driver));
    CUDA_TRY(&d->cuda, device_get, &d->id, o->ordinal);
    CUDA_TRY(&d->cuda, context_retain, &d->context, d->id);
    CUDA_TRY(&d->cuda, context_push, d->context);
    const ps_err err = device_make_all(d);
    d->cuda.context_pop(&before);
    return err;
}

static void *device_thread(void *arg);

static ps_err device_make(pstrain_session *s, const pstrain_device_options *o)
{
    device *d;
    PS_TRY(PS_NEW(&s->device, 1, "a device"));
    d = s->device;
    d->session = s;
    d->n_tensors = s->own.table.n_tensors;
    d->n_chunks = ps_session_plan(s->session)->n_chunks;
    pthread_mutex_init(&d->lock, NULL);
    ps_cond_init(&d->work);
    ps_cond_init(&d->progress);
    PS_TRY(PS_NEW(&d->chunks, d->n_chunks, "a device"));
    PS_TRY(PS_NEW(&d->given, d->n_chunks, "a device"));
    PS_TRY(PS_NEW(&d->tensors, (size_t)d->n_tensors, "a device"));
    device_lay_out(d, o->dtypes);
    PS_TRY(device_take_gpu(d, o));
    return ps_thread_start(&d->thread, "device", device_thread, d);
}

static ps_err device_check_options(const pstrain_session *s,
                                   const pstrain_device_options *o)
{
    if (s->reduces || s->device)
        return ps_err_set(PS_ERR_ARG, "pstrain_device_open: %s",
                          s->device ? "the session has a device already"
                                    : "the session was opened for sums");
    if (o->ordinal < 0)
        return ps_err_set(PS_ERR_ARG, "pstrain_device_open: GPU %d", o->ordinal);
    for (int t = 0; o->dtypes && t < s->own.table.n_tensors; t++)
        if (o->dtypes[t] != PSTRAIN_FLOAT32 && o->dtypes[t] != PSTRAIN_FLOAT16 &&
            o->dtypes[t] != PSTRAIN_BFLOAT16)
            return ps_err_set(PS_ERR_ARG,
                              "pstrain_device_open: parameter %s is of dtype %d; on a "
                              "GPU it is float32, float16 or bfloat16",
                              s->own.table.tensors[t].name, o->dtypes[t]);
    return PS_OK;
}

static ps_err device_open(pstrain_session *s, const pstrain_device_options *given)
{
    pstrain_device_options o = {0};
    if (!given || given->struct_size < offsetof(pstrain_device_options, dtypes))
        return ps_err_set(PS_ERR_ARG, "pstrain_device_open: struct_size is not a size of "
                                      "pstrain_device_options");
    memcpy(&o, given, given->struct_size < sizeof o ? given->struct_size : sizeof o);
    PS_TRY(device_check_options(s, &o));
    return device_make(s, &o);
}

int pstrain_device_open(pstrain_session *s, const pstrain_device_options *options)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_MAIN, PS_IN_OPEN, device_open(s, options));
}

uint64_t pstrain_device_bytes(const pstrain_session *s)
{
    return s && s->device ? s->device->bytes : 0;
}

uint64_t pstrain_device_offset(const pstrain_session *s, int index)
{
    const bool known = s && s->device && index >= 0 && index < s->device->n_tensors;
    return known ? s->device->tensors[index].at : UINT64_MAX;
}

/* --- the thread: gradients --------------------------------------------------------- */

/* In the GPU's own thread: a gradient has arrived. */
static void device_tell(void *arg)
{
    device_chunk *chunk = arg;
    device *d = chunk->device;
    pthread_mutex_lock(&d->lock);
    chunk->stage = LANDED;
    d->moves++;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

static ps_err device_copy_out(device *d, device_chunk *chunk)
{
    const pstrain_driver *cuda = &d->cuda;
    for (int t = chunk->plan->first_tensor; t <= chunk->plan->last_tensor; t++)
        CUDA_TRY(cuda, stream_wait, d->out, d->tensors[t].pushed, 0);
    if (chunk->number > 0) CUDA_TRY(cuda, stream_wait, d->out, chunk->arrived, 0);
    if (chunk->some) {
        void *to = chunk->narrow ? (char *)d->narrow_grads.base + chunk->at
                                 : (char *)device_host_grads(d) +
                                       chunk->plan->offset * sizeof(float);
        CUDA_TRY(cuda, copy_to_host, to, d->grads + chunk->at, chunk->bytes, d->out);
    }
    CUDA_TRY(cuda, event_record, d->landed, d->out);
    CUDA_TRY(cuda, stream_wait, d->told, d->landed, 0); // the next copy waits for no call
    CUDA_TRY(cuda, stream_call, d->told, device_tell, chunk);
    return PS_OK;
}

/* What has arrived becomes what the session sends. */
static ps_err device_widen(device *d, const device_chunk *chunk)
{
    float *grads = device_host_grads(d);
    for (int t = chunk->plan->first_tensor; t <= chunk->plan->last_tensor; t++) {
        const device_part part = device_part_of(d, chunk->plan, t);
        float *to = grads + part.first;
        if (part.tensor->lacks) {
            ps_absent_fill(to, part.n);
            continue;
        }
        if (chunk->narrow)
            PS_TRY(ps_codec_decode(part.tensor->as, 0, part.n,
                                   (char *)d->narrow_grads.base + part.at,
                                   ps_codec_bytes(part.tensor->as, part.n, 0), to));
        if (part.tensor->factor != 1) ps_floats_scale(to, part.tensor->factor, part.n);
        ps_absent_clear(to, part.n);
    }
    return PS_OK;
}

static ps_err device_send(device *d, device_chunk *chunk)
{
    const uint64_t begin = chunk->plan->offset;
    PS_TRY(device_widen(d, chunk));
    return ps_session_push_range(d->session->session, begin, begin + chunk->plan->count);
}

/* --- the thread: weights ----------------------------------------------------------- */

static void device_narrow(const device *d, const device_chunk *chunk)
{
    const float *params = device_host_params(d);
    for (int t = chunk->plan->first_tensor; t <= chunk->plan->last_tensor; t++) {
        const device_part part = device_part_of(d, chunk->plan, t);
        void *to = (char *)d->narrow_params.base + part.at;
        if (part.tensor->as == PS_CODEC_FP16)
            ps_codec_encode_fp16_overflow(part.n, params + part.first, to);
        else
            ps_codec_encode(part.tensor->as, 0, part.n, params + part.first, NULL,
                            (ps_codec_draw){0}, to);
    }
}

static ps_err device_copy_in(device *d, device_chunk *chunk)
{
    const void *from = chunk->narrow ? (char *)d->narrow_params.base + chunk->at
                                     : (char *)device_host_params(d) +
                                           chunk->plan->offset * sizeof(float);
    if (chunk->narrow) device_narrow(d, chunk);
    CUDA_TRY(&d->cuda, copy_to_device, d->params + chunk->at, from, chunk->bytes, d->in);
    CUDA_TRY(&d->cuda, event_record, chunk->arrived, d->in);
    return PS_OK;
}

/* The newest weights of a chunk are on the host. */
static ps_err device_take(device *d, device_chunk *chunk)
{
    PS_TRY(device_copy_in(d, chunk));
    pthread_mutex_lock(&d->lock);
    chunk->number = ++d->copies;
    chunk->stage = ON_DEVICE;
    d->moves++;
    pthread_cond_broadcast(&d->progress);
    pthread_mutex_unlock(&d->lock);
    return PS_OK;
}

/* The step's weights, as they come; those that were sent first come first. */
static ps_err device_take_step(device *d)
{
    ps_session *s = d->session->session;
    for (uint32_t c = 0, taken = 0; c < d->n_chunks; taken = 0) {
        for (uint32_t i = c; i < d->n_chunks; i++) {
            const ps_chunk *plan = d->chunks[i].plan;
            bool ready = false;
            if (d->chunks[i].stage == SENT)
                PS_TRY(ps_session_ready(s, plan->first_tensor,
                                        plan->last_tensor - plan->first_tensor + 1,
                                        &ready));
            if (ready) PS_TRY(device_take(d, &d->chunks[i]));
            taken += ready;
        }
        while (c < d->n_chunks && d->chunks[c].stage != SENT)
            c++;
        if (taken > 0 || c == d->n_chunks) continue;
        const ps_chunk *plan = d->chunks[c].plan;
        PS_TRY(ps_session_wait_range(s, plan->offset, plan->offset + plan->count));
        PS_TRY(device_take(d, &d->chunks[c]));
    }
    return PS_OK;
}

/* --- the thread: its loop ---------------------------------------------------------- */

/* The next thing to do, without the lock; *done: there is none. */
static ps_err device_turn(device *d, bool *done)
{
    *done = false;
    pthread_mutex_lock(&d->lock);
    device_chunk *chunk = NULL;
    for (uint32_t i = 0; i < d->n_taken && !chunk; i++)
        if (d->chunks[d->given[i]].stage == LANDED) chunk = &d->chunks[d->given[i]];
    const bool landed = chunk != NULL;
    if (d->n_taken < d->n_given) { // first: it keeps the bus busy
        chunk = &d->chunks[d->given[d->n_taken++]];
        chunk->stage = LEAVING;
    }
    const bool leaves = chunk && chunk->stage == LEAVING;
    const bool steps = d->finishing && d->n_unsent == 0;
    pthread_mutex_unlock(&d->lock);
    if (leaves) return device_copy_out(d, chunk);
    if (landed) {
        PS_TRY(device_send(d, chunk));
        pthread_mutex_lock(&d->lock);
        chunk->stage = SENT;
        d->n_unsent--;
        d->moves++;
        pthread_mutex_unlock(&d->lock);
        return PS_OK;
    }
    *done = !steps;
    if (!steps) return PS_OK;
    PS_TRY(ps_session_finish(d->session->session));
    PS_TRY(device_take_step(d));
    pthread_mutex_lock(&d->lock);
    d->finishing = false;
    pthread_mutex_unlock(&d->lock);
    return PS_OK;
}

/* The device's lock is held. */
static bool device_has_work(const device *d)
{
    bool landed = d->n_taken < d->n_given || (d->finishing && d->n_unsent == 0);
    for (uint32_t i = 0; i < d->n_taken && !landed; i++)
        landed = d->chunks[d->given[i]].stage == LANDED;
    return landed;
}

/* A failure of the GPU ends its calls of device_tell without a word. */
static ps_err device_look(device *d)
{
    const cuda_result result = d->cuda.stream_query(d->told);
    return result == CUDA_NOT_READY ? PS_OK
                                    : pstrain_driver_check(&d->cuda, result, "copies");
}

static ps_err device_serve(device *d)
{
    for (bool idle = true, ends = false;;) {
        pthread_mutex_lock(&d->lock);
        d->busy = false;
        pthread_cond_broadcast(&d->progress);
        if (idle && !d->ends && !device_has_work(d))
            ps_cond_wait(&d->work, &d->lock, ps_deadline_in_ms(LOOK_MS));
        d->busy = true;
        ends = d->ends;
        pthread_mutex_unlock(&d->lock);
        if (ends) return PS_OK;
        PS_TRY(device_look(d));
        PS_TRY(device_turn(d, &idle));
    }
}

static bool device_asks(void *arg)
{
    device *d = arg;
    pthread_mutex_lock(&d->lock);
    const bool ends = d->ends;
    pthread_mutex_unlock(&d->lock);
    return ends || atomic_load(&d->session->aborted);
}

static void *device_thread(void *arg)
{
    device *d = arg;
    ps_interrupt_set_hook(device_asks, d);
    ps_err err =
        pstrain_driver_check(&d->cuda, d->cuda.context_push(d->context), "context_push");
    int mode = CAPTURE_RELAXED; // calls of this thread end no capture of the program's
    if (err == PS_OK)
        err = pstrain_driver_check(&d->cuda, d->cuda.capture_mode(&mode), "capture_mode");
    if (err == PS_OK) err = device_serve(d);
    const ps_err_saved failure = ps_err_save(err);
    pthread_mutex_lock(&d->lock);
    d->failure = failure;
    d->busy = false;
    pthread_cond_broadcast(&d->progress);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* --- waiting for the thread -------------------------------------------------------- */

static bool device_is_idle(const device *d, uint32_t first, uint32_t last)
{
    return !d->busy && !d->finishing && d->n_unsent == 0;
}

static bool device_has_weights(const device *d, uint32_t first, uint32_t last)
{
    for (uint32_t c = first; c <= last; c++)
        if (d->chunks[c].stage > STALE) return false;
    return true;
}

/* Blocks until `is` says so of the chunks; TIMEOUT when nothing moves. */
static ps_err device_wait_until(device *d, bool (*is)(const device *, uint32_t, uint32_t),
                                uint32_t first, uint32_t last)
{
    const uint64_t ms = (uint64_t)pstrain_config(d->session)->net.step_timeout_ms;
    ps_deadline deadline = ps_deadline_in_ms(ms);
    ps_err err = PS_OK;
    pthread_mutex_lock(&d->lock);
    for (uint64_t moves = d->moves; err == PS_OK && !is(d, first, last);) {
        if (d->failure.code != PS_OK) {
            err = ps_err_restore(&d->failure);
            break;
        }
        // Where it waits for servers, the session has a deadline of its own.
        if (ps_deadline_passed(deadline))
            err = ps_err_set(PS_ERR_TIMEOUT,
                             "the GPU has made no copy for %" PRIu64
                             " ms (net.step_timeout_ms): %u of %u chunks of gradients "
                             "have not arrived",
                             ms, d->n_unsent, d->n_chunks);
        pthread_mutex_unlock(&d->lock);
        if (err == PS_OK) err = ps_interrupt_ask_hook();
        pthread_mutex_lock(&d->lock);
        if (err == PS_OK && !is(d, first, last))
            ps_cond_wait(&d->progress, &d->lock, ps_deadline_in_ms(LOOK_MS));
        if (d->moves != moves || (d->finishing && d->n_unsent == 0))
            deadline = ps_deadline_in_ms(ms);
        moves = d->moves;
    }
    pthread_mutex_unlock(&d->lock);
    return err;
}

ps_err pstrain_device_settle(pstrain_session *s)
{
    if (!s->device) return PS_OK;
    if (s->begun)
        return ps_err_set(PS_ERR_ARG,
                          "step %" PRIu64 " of parameters on a GPU is not finished yet "
                          "(pstrain_finish)",
                          s->step);
    return device_wait_until(s->device, device_is_idle, 0, 0);
}

static bool device_streams_rest(const device *d)
{
    return d->cuda.stream_query(d->out) != CUDA_NOT_READY &&
           d->cuda.stream_query(d->in) != CUDA_NOT_READY &&
           d->cuda.stream_query(d->told) != CUDA_NOT_READY;
}

/* Whether they do before the deadline. */
static bool device_wait_for_rest(const device *d, ps_deadline deadline)
{
    const struct timespec pause = {.tv_nsec = 50000};
    while (!device_streams_rest(d) && !ps_deadline_passed(deadline))
        nanosleep(&pause, NULL);
    return device_streams_rest(d);
}

/* Blocks until all copies are made. */
static ps_err device_rest(const pstrain_session *s)
{
    const device *d = s->device;
    const uint64_t ms = (uint64_t)pstrain_config(s)->net.step_timeout_ms;
    cuda_context before;
    CUDA_TRY(&d->cuda, context_push, d->context);
    const bool rests = device_wait_for_rest(d, ps_deadline_in_ms(ms));
    d->cuda.context_pop(&before);
    if (rests) return PS_OK;
    return ps_err_set(PS_ERR_TIMEOUT,
                      "the GPU's copies of weights are not done after %" PRIu64
                      " ms (net.step_timeout_ms)",
                      ms);
}

ps_err pstrain_device_renew(pstrain_session *s)
{
    device *d = s->device;
    if (!d) return PS_OK;
    PS_TRY(pstrain_device_settle(s));
    PS_TRY(device_rest(s));
    for (uint32_t c = 0; c < d->n_chunks; c++)
        d->chunks[c].stage = STALE;
    return PS_OK;
}

/* --- steps ------------------------------------------------------------------------- */

ps_err pstrain_device_begin(pstrain_session *s, uint32_t step_of)
{
    device *d = s->device;
    if (!d) return PS_OK;
    for (uint32_t c = 0; c < d->n_chunks; c++)
        if (d->chunks[c].stage == STALE)
            return ps_err_set(PS_ERR_ARG,
                              "pstrain_begin: the GPU lacks the weights of %s: "
                              "pstrain_device_wait for all parameters comes before",
                              device_table(d)[d->chunks[c].plan->first_tensor].name);
    for (int t = 0; t < d->n_tensors; t++) {
        const int owner = device_table(d)[t].owner;
        d->tensors[t].given =
            step_of != PS_STEP_OF_ALL && (uint32_t)owner + 1 != step_of; // by the session
    }
    pthread_mutex_lock(&d->lock);
    d->n_given = d->n_taken = d->n_unsent = 0;
    for (uint32_t c = 0; c < d->n_chunks; c++) {
        device_chunk *chunk = &d->chunks[c];
        if (ps_chunk_is_idle(chunk->plan, &s->own.table, step_of)) continue;
        chunk->stage = FILLING;
        chunk->some = false;
        chunk->left = chunk->plan->last_tensor - chunk->plan->first_tensor + 1;
        d->n_unsent++;
    }
    pthread_mutex_unlock(&d->lock);
    return PS_OK;
}

/* As pstrain_enter, without settling, with the GPU's context as the present one. */
static ps_err device_enter(pstrain_session *s, unsigned stages, const char *call)
{
    PS_TRY(pstrain_enter(s, PSTRAIN_LANE_MAIN, stages, call));
    const device *d = s->device;
    const ps_err err =
        d ? pstrain_driver_check(&d->cuda, d->cuda.context_push(d->context),
                                 "context_push")
          : ps_err_set(PS_ERR_ARG, "%s: there is no device (pstrain_device_open)", call);
    if (err != PS_OK) pstrain_leave(s, PSTRAIN_LANE_MAIN, err);
    return err;
}

static int device_leave(pstrain_session *s, ps_err err)
{
    cuda_context before;
    s->device->cuda.context_pop(&before);
    return pstrain_leave(s, PSTRAIN_LANE_MAIN, err);
}

#define DEVICE_CALL(s, stages, work)                                                     \
    PSTRAIN_RETURN(device_enter(s, stages, __func__), device_leave(s, work))

static ps_err device_check(const pstrain_session *s, int first, int n, void *stream,
                           const char *call)
{
    const device *d = s->device;
    int capturing = 0;
    if (first < 0 || n <= 0 || n > d->n_tensors - first)
        return ps_err_set(PS_ERR_ARG, "%s: parameters %d to %d, but there are %d", call,
                          first, first + n - 1, d->n_tensors);
    if (!d->params)
        return ps_err_set(PS_ERR_ARG, "%s: pstrain_device_arenas comes before", call);
    if (d->cuda.stream_capturing(stream, &capturing) == 0 && capturing == 0) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "%s: the stream is being captured in a CUDA graph, whose replay "
                      "would run without the servers: capture without the step, or "
                      "leave the graph",
                      call);
}

static ps_err device_check_push(const pstrain_session *s, int first, int n, void *stream,
                                const char *call)
{
    PS_TRY(device_check(s, first, n, stream, call));
    if (!s->begun)
        return ps_err_set(PS_ERR_ARG, "%s: no step has begun (pstrain_begin)", call);
    for (int t = first; t < first + n; t++)
        if (s->device->tensors[t].given)
            return ps_err_set(PS_ERR_ARG,
                              "%s in step %" PRIu64 ": the gradient of %s was pushed "
                              "before, or is of another optimizer",
                              call, s->step, device_table(s->device)[t].name);
    return PS_OK;
}

/* The device's lock is held. */
static void device_count(device *d, device_chunk *chunk, bool lacks)
{
    chunk->some |= !lacks;
    if (--chunk->left > 0) return;
    chunk->stage = GIVEN;
    d->given[d->n_given++] = (uint32_t)(chunk - d->chunks);
    pthread_cond_signal(&d->work);
}

static ps_err device_give(device *d, int t, void *stream, float factor, bool lacks)
{
    device_tensor *tensor = &d->tensors[t];
    CUDA_TRY(&d->cuda, event_record, tensor->pushed, stream);
    tensor->lacks = lacks;
    tensor->factor = factor;
    tensor->given = true;
    pthread_mutex_lock(&d->lock);
    for (uint32_t c = tensor->first_chunk; c <= tensor->last_chunk; c++)
        device_count(d, &d->chunks[c], lacks);
    d->moves++;
    const bool failed = d->failure.code != PS_OK;
    pthread_mutex_unlock(&d->lock);
    return failed ? ps_err_restore(&d->failure) : PS_OK;
}

static ps_err device_push(pstrain_session *s, int first, int n, void *stream,
                          float factor, bool lacks)
{
    PS_TRY(device_check_push(s, first, n, stream,
                             lacks ? "pstrain_device_push_none" : "pstrain_device_push"));
    for (int t = first; t < first + n; t++)
        PS_TRY(device_give(s->device, t, stream, factor, lacks));
    return PS_OK;
}

int pstrain_device_push(pstrain_session *s, int index, void *stream, float factor)
{
    DEVICE_CALL(s, PS_IN_STARTED, device_push(s, index, 1, stream, factor, false));
}

int pstrain_device_push_none(pstrain_session *s, int first, int n, void *stream)
{
    DEVICE_CALL(s, PS_IN_STARTED, device_push(s, first, n, stream, 1, true));
}

ps_err pstrain_device_finish(pstrain_session *s)
{
    device *d = s->device;
    for (int t = 0; t < d->n_tensors; t++)
        if (!d->tensors[t].given)
            return ps_err_set(PS_ERR_ARG, "%s was not pushed in step %" PRIu64,
                              device_table(d)[t].name, s->step);
    ps_cond_set(&d->work, &d->lock, &d->finishing);
    return PS_OK;
}

/* --- weights ----------------------------------------------------------------------- */

/* The host's weights, which nobody has copied yet, follow what the stream was given. */
static ps_err device_renew_chunks(device *d, uint32_t first, uint32_t last, void *stream)
{
    for (uint32_t c = first; c <= last; c++) {
        if (d->chunks[c].stage != STALE) continue;
        CUDA_TRY(&d->cuda, event_record, d->read, stream);
        CUDA_TRY(&d->cuda, stream_wait, d->in, d->read, 0);
        PS_TRY(device_take(d, &d->chunks[c]));
    }
    return PS_OK;
}

static ps_err device_follow(device *d, uint32_t first, uint32_t last, void *stream)
{
    const device_chunk *newest = &d->chunks[first];
    PS_TRY(device_renew_chunks(d, first, last, stream));
    for (uint32_t c = first; c <= last; c++)
        if (d->chunks[c].number > newest->number) newest = &d->chunks[c];
    CUDA_TRY(&d->cuda, stream_wait, stream, newest->arrived, 0);
    return PS_OK;
}

static ps_err device_wait(pstrain_session *s, int first, int n, void *stream)
{
    device *d = s->device;
    uint32_t from = UINT32_MAX, to = 0;
    PS_TRY(device_check(s, first, n, stream, "pstrain_device_wait"));
    for (int t = first; t < first + n; t++) {
        if (d->tensors[t].first_chunk < from) from = d->tensors[t].first_chunk;
        if (d->tensors[t].last_chunk > to) to = d->tensors[t].last_chunk;
        if (s->begun && d->tensors[t].given)
            return ps_err_set(PS_ERR_ARG,
                              "pstrain_device_wait: %s was pushed in step %" PRIu64
                              ", which is not finished yet (pstrain_finish)",
                              device_table(d)[t].name, s->step);
    }
    if (!s->begun) PS_TRY(device_wait_until(d, device_has_weights, from, to));
    return device_follow(d, from, to, stream);
}

int pstrain_device_wait(pstrain_session *s, int first, int n, void *stream)
{
    DEVICE_CALL(s, PS_IN_STARTED, device_wait(s, first, n, stream));
}

static ps_err device_set_arenas(pstrain_session *s, uint64_t params, uint64_t grads)
{
    if (!params || !grads || params % ALIGNED || grads % ALIGNED)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_device_arenas: an address that is no multiple of 64");
    s->device->params = params;
    s->device->grads = grads;
    return PS_OK;
}

int pstrain_device_arenas(pstrain_session *s, uint64_t params, uint64_t grads)
{
    DEVICE_CALL(s, PS_IN_OPEN, device_set_arenas(s, params, grads));
}

/* --- the end ----------------------------------------------------------------------- */

static void device_free_cuda(device *d)
{
    for (int i = 0; i < 4; i++)
        device_unpin(d, &d->pinned[i]);
    for (uint32_t c = 0; c < d->n_chunks && d->chunks; c++)
        if (d->chunks[c].arrived) d->cuda.event_destroy(d->chunks[c].arrived);
    for (int t = 0; t < d->n_tensors && d->tensors; t++)
        if (d->tensors[t].pushed) d->cuda.event_destroy(d->tensors[t].pushed);
    if (d->landed) d->cuda.event_destroy(d->landed);
    if (d->read) d->cuda.event_destroy(d->read);
    cuda_stream streams[] = {d->out, d->in, d->told};
    for (int i = 0; i < 3; i++)
        if (streams[i]) d->cuda.stream_destroy(streams[i]);
}

/* False: copies are still on their way, as after a kernel that never ends. */
static bool device_leave_gpu(device *d)
{
    cuda_context before;
    if (!d->context || d->cuda.context_push(d->context) != 0) return true;
    const bool rests = !d->told || device_wait_for_rest(d, ps_deadline_in_ms(LEAVE_MS));
    if (rests) device_free_cuda(d);
    d->cuda.context_pop(&before);
    if (rests) d->cuda.context_release(d->id);
    return rests;
}

void pstrain_device_destroy(struct pstrain_device **pointer)
{
    device *d = *pointer;
    if (!d) return;
    *pointer = NULL;
    ps_cond_set(&d->work, &d->lock, &d->ends);
    ps_thread_join(&d->thread);
    if (!device_leave_gpu(d)) return; // the GPU still calls device_tell
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->progress);
    ps_shared_mem_fini(&d->narrow_params);
    ps_shared_mem_fini(&d->narrow_grads);
    free(d->chunks);
    free(d->tensors);
    free(d->given);
    free(d);
}

int pstrain_device_close(pstrain_session *s)
{
    if (!s || getpid() != s->pid || atomic_exchange(&s->busy[PSTRAIN_LANE_MAIN], true))
        return ps_err_set(PS_ERR_ARG, "pstrain_device_close: the session is NULL, of "
                                      "another process, or in use by another thread");
    const bool copies = s->device && ps_life_stage(&s->life) == PS_STAGE_STARTED;
    ps_err err = copies ? pstrain_device_settle(s) : PS_OK;
    if (copies && err == PS_OK) err = device_rest(s);
    // pstrain_destroy waits once more; until then the GPU may still write
    if (err != PS_ERR_TIMEOUT) pstrain_device_destroy(&s->device);
    return pstrain_leave(s, PSTRAIN_LANE_MAIN, err);
}
