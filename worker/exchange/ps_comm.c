#include "ps_comm.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "chunk_codec.h"
#include "credit.h"
#include "log.h"
#include "loss_scale.h"
#include "mem.h"
#include "shm_offer.h"
#include "stream_copy.h"
#include "wire_socket.h"
#include "zsock.h"

enum {
    BYE_LINGER_MS = 2000,
    MESSAGES_PER_SOCKET = 32, // before other sockets are looked at
    WAIT_SLICE_MS = 1000      // progress is looked at so often while waiting
};

/* An order beside the kinds of messages: the thread ends without a word. */
enum { QUIT = 0 };

enum { WAIT_NONE = 0, WAIT_ANY = UINT32_MAX }; // else: chunk + 1

typedef struct order {
    uint8_t kind; // ps_msg_kind
    uint32_t chunk;
    uint64_t step;
} order;

typedef struct shard_link {
    void *socket;
    int server;
    const char *host, *endpoint; // borrowed from the roster
    bool shm, ready;
    ps_credit credit;
    uint64_t on_the_way; // payload bytes without credit
    uint64_t *waiting;   // bit set over the plan's chunks: ordered, not sent
    uint32_t n_waiting;
} shard_link;

struct ps_comm {
    ps_exchange_options o;
    const ps_plan *plan;
    uint64_t nonce;
    uint32_t epoch;
    void *zmq_context;
    uint32_t n_links;
    shard_link *links; // by shard
    zmq_pollitem_t *items;
    uint32_t n_words;
    bool stream; // weights bypass the caches on their way to the arena
    ps_chunk_codec codec;
    uint8_t **encoded; // by chunk: its gradient, encoded, until the reply is here; NULL
                       // where it travels as float32
    float *residual;   // an arena: what the codec has not sent yet, or NULL
    order *pending;    // by chunk: what its bit in `waiting` means
    // Orders: written by the main thread at tail, read by the thread at head.
    order *ring;
    uint32_t ring_mask;
    _Atomic uint32_t head, tail;
    atomic_bool asleep; // the thread is in poll: an order has to wake it
    int wake_fd;
    bool bye, quit;
    bool scales;            // the loss
    uint64_t scale_version; // the newest of any chunk
    // Results
    _Atomic uint32_t scale_bits; // of that version
    _Atomic int64_t *versions;
    _Atomic uint32_t n_ready;
    _Atomic uint32_t waiting_for;
    _Atomic uint32_t wake_sequence; // futex
    _Atomic uint64_t progress_ns;
    atomic_int failure; // ps_err, set after failure_text
    char failure_text[512];
    _Atomic uint64_t bytes_sent, bytes_received, raw_bytes, most_on_the_way;
    _Atomic uint64_t shm_sent, shm_received;
    pthread_t thread;
    bool running;
};

static void count_up(_Atomic uint64_t *counter, uint64_t by)
{
    atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* ---- waking the main thread ---- */

static void wake_main(ps_comm *c)
{
    atomic_fetch_add(&c->wake_sequence, 1);
    syscall(SYS_futex, &c->wake_sequence, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void sleep_main(ps_comm *c, uint32_t sequence, int ms)
{
    const struct timespec timeout = {.tv_sec = ms / 1000,
                                     .tv_nsec = (long)(ms % 1000) * 1000000};
    syscall(SYS_futex, &c->wake_sequence, FUTEX_WAIT_PRIVATE, sequence, &timeout, NULL,
            0);
}

/* One wake-up for the chunk that is waited for, none for the others. */
static void progress(ps_comm *c, uint32_t wait_id)
{
    atomic_store_explicit(&c->progress_ns, ps_clock_ns(), memory_order_relaxed);
    uint32_t wanted = atomic_load(&c->waiting_for);
    if (wanted == wait_id || wanted == WAIT_ANY) wake_main(c);
}

static void fail(ps_comm *c, ps_err err)
{
    snprintf(c->failure_text, sizeof c->failure_text, "%s", ps_err_message());
    atomic_store(&c->failure, (int)err);
    wake_main(c);
}

static void set_version(ps_comm *c, uint32_t chunk, int64_t version)
{
    atomic_store(&c->versions[chunk], version);
    progress(c, chunk + 1);
}

/* ---- sending ---- */

static ps_wire_header header_for(const ps_comm *c, int kind)
{
    return (ps_wire_header){
        .version = PS_WIRE_VERSION,
        .kind = (uint8_t)kind,
        .nonce = c->nonce,
        .epoch = c->epoch,
        .rank = (uint32_t)c->o.rank,
    };
}

static ps_err send_header(ps_comm *c, shard_link *l, const ps_wire_header *h,
                          const void *payload, size_t bytes)
{
    uint64_t sent = 0;
    // Payloads lie in the arenas, which outlive the sockets. A gradient is overwritten
    // only when the weights that answer it are here: it has been read by then.
    ps_err err =
        ps_wire_send(l->socket, NULL, 0, h, payload, bytes, PS_WIRE_BORROW, &sent);
    count_up(&c->bytes_sent, sent);
    count_up(&c->raw_bytes, sent);
    return err;
}

static bool has_payload(int kind)
{
    return kind == PS_MSG_INIT || kind == PS_MSG_PUSH;
}

static ps_codec gradient_codec(const ps_comm *c, const ps_chunk *chunk, uint64_t step)
{
    return ps_chunk_codec_of(&c->codec, chunk, PS_CODED_GRADIENT, step);
}

static size_t payload_bytes(const ps_comm *c, const shard_link *l, uint32_t chunk)
{
    int kind = c->pending[chunk].kind;
    if (l->shm || !has_payload(kind)) return 0;
    const ps_chunk *plan = &c->plan->chunks[chunk];
    if (kind != PS_MSG_PUSH || !c->encoded[chunk]) return plan->count * sizeof(float);
    return ps_chunk_codec_bytes(&c->codec, plan,
                                gradient_codec(c, plan, c->pending[chunk].step));
}

/* Where the payload of an INIT or PUSH lies; a gradient that travels encoded is encoded
 * here, on this thread, while the main thread computes. */
static const void *payload_of(ps_comm *c, uint32_t chunk, ps_wire_header *h)
{
    const ps_chunk *plan = &c->plan->chunks[chunk];
    if (h->kind == PS_MSG_INIT) return (const float *)c->o.params->base + plan->offset;
    const float *grad = (const float *)c->o.grads->base + plan->offset;
    if (!c->encoded[chunk]) return grad;
    const ps_codec codec = gradient_codec(c, plan, h->step);
    h->codec = (uint8_t)codec;
    ps_chunk_codec_encode(
        &c->codec, plan, codec, grad, c->residual ? c->residual + plan->offset : NULL,
        ps_codec_draw(h->rank, h->step, plan->offset), c->encoded[chunk]);
    return c->encoded[chunk];
}

static ps_err send_chunk(ps_comm *c, shard_link *l, uint32_t chunk)
{
    const order *what = &c->pending[chunk];
    const ps_chunk *plan = &c->plan->chunks[chunk];
    ps_wire_header h = header_for(c, what->kind);
    h.step = what->step;
    h.chunk = chunk;
    if (!has_payload(what->kind)) return send_header(c, l, &h, NULL, 0);
    h.count = plan->count;
    if (l->shm) {
        h.codec = PS_CODEC_SHM;
        h.place = plan->offset;
        count_up(&c->shm_sent, plan->count * sizeof(float));
        return send_header(c, l, &h, NULL, 0);
    }
    size_t bytes = payload_bytes(c, l, chunk);
    const void *payload = payload_of(c, chunk, &h);
    l->on_the_way += bytes;
    if (l->on_the_way > atomic_load_explicit(&c->most_on_the_way, memory_order_relaxed))
        atomic_store_explicit(&c->most_on_the_way, l->on_the_way, memory_order_relaxed);
    count_up(&c->raw_bytes, plan->count * sizeof(float) - bytes);
    return send_header(c, l, &h, payload, bytes);
}

/* The waiting chunk with the highest index: the next forward pass needs it first. */
static uint32_t most_urgent(const ps_comm *c, const shard_link *l)
{
    uint32_t w = c->n_words;
    while (l->waiting[--w] == 0)
        ;
    return w * 64 + 63 - (uint32_t)__builtin_clzll(l->waiting[w]);
}

/* One chunk to each shard in turn, so that all links are busy soon. */
static ps_err send_allowed(ps_comm *c)
{
    for (bool any = true; any;) {
        any = false;
        for (uint32_t i = 0; i < c->n_links; i++) {
            shard_link *l = &c->links[i];
            if (l->n_waiting == 0) continue;
            uint32_t chunk = most_urgent(c, l);
            if (!ps_credit_allows(&l->credit, l->on_the_way, payload_bytes(c, l, chunk)))
                continue;
            l->waiting[chunk / 64] &= ~(UINT64_C(1) << (chunk % 64));
            l->n_waiting--;
            PS_TRY(send_chunk(c, l, chunk));
            if (c->pending[chunk].kind == PS_MSG_INIT) set_version(c, chunk, 0);
            any = true;
        }
    }
    return PS_OK;
}

static ps_err send_bye(ps_comm *c)
{
    for (uint32_t i = 0; i < c->n_links; i++) {
        ps_wire_header h = header_for(c, PS_MSG_BYE);
        PS_TRY(send_header(c, &c->links[i], &h, NULL, 0));
    }
    return PS_OK;
}

/* ---- receiving ---- */

/* Not the weights but their encoded change since the last version. */
static bool is_change(const ps_comm *c, const ps_wire_header *h)
{
    if (!c->encoded[h->chunk] || h->codec == PS_CODEC_NONE || h->step == 0) return false;
    return h->codec == (uint8_t)ps_chunk_codec_of(&c->codec, &c->plan->chunks[h->chunk],
                                                  PS_CODED_CHANGE, h->step - 1);
}

static ps_err check_weights(const ps_comm *c, const shard_link *l,
                            const ps_wire_header *h, const ps_wire_frames *f)
{
    if (h->chunk >= c->plan->n_chunks || &c->links[c->plan->chunks[h->chunk].shard] != l)
        return ps_err_set(PS_ERR_PROTOCOL, "weights of chunk %u, which is not its own",
                          h->chunk);
    const ps_chunk *chunk = &c->plan->chunks[h->chunk];
    uint64_t count = chunk->count, wanted = count * sizeof(float);
    bool shm = h->codec == PS_CODEC_SHM, coded = is_change(c, h);
    size_t bytes = f->has_payload ? zmq_msg_size(&f->payload) : 0;
    if (shm) wanted = 0;
    if (coded) wanted = ps_chunk_codec_bytes(&c->codec, chunk, (ps_codec)h->codec);
    if (h->count != count || shm != l->shm || bytes != wanted ||
        (!shm && !coded && h->codec != PS_CODEC_NONE))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "weights of chunk %u with %" PRIu64
                          " elements in %zu bytes; the plan has %" PRIu64 " elements",
                          h->chunk, h->count, bytes, count);
    return PS_OK;
}

static void copy_weights(const ps_comm *c, float *to, const float *from, uint64_t n)
{
    if (c->stream) {
        ps_stream_copy(to, from, n);
        ps_stream_copy_done();
    } else {
        memcpy(to, from, n * sizeof *from);
    }
}

/* A loss scale is of a version, whatever chunk and shard it comes with. */
static ps_err take_scale(ps_comm *c, const ps_wire_header *h)
{
    if (!c->scales) return PS_OK;
    float scale;
    memcpy(&scale, &h->scale, sizeof scale);
    uint32_t before = atomic_load_explicit(&c->scale_bits, memory_order_relaxed);
    bool newer = h->step > c->scale_version;
    if (!(scale > 0) || !isfinite(scale) || (!newer && h->scale != before))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "version %" PRIu64 " of chunk %u with the loss scale %g; other "
                          "chunks have another",
                          h->step, h->chunk, (double)scale);
    c->scale_version = h->step;
    atomic_store_explicit(&c->scale_bits, h->scale, memory_order_relaxed);
    return PS_OK;
}

static ps_err take_weights(ps_comm *c, shard_link *l, const ps_wire_header *h,
                           ps_wire_frames *f)
{
    PS_TRY(check_weights(c, l, h, f));
    int64_t have = atomic_load_explicit(&c->versions[h->chunk], memory_order_relaxed);
    // The answer to a repeated push: here already, and perhaps in use.
    if (have >= 0 && h->step <= (uint64_t)have) return PS_OK;
    if (h->step != (uint64_t)(have + 1))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "version %" PRIu64 " of chunk %u after version %" PRId64,
                          h->step, h->chunk, have);
    PS_TRY(take_scale(c, h));
    const ps_chunk *chunk = &c->plan->chunks[h->chunk];
    float *params = (float *)c->o.params->base + chunk->offset;
    if (is_change(c, h)) // the shard adds the same to what it believes that we have
        PS_TRY(ps_chunk_codec_decode_add(&c->codec, chunk, (ps_codec)h->codec,
                                         zmq_msg_data(&f->payload),
                                         zmq_msg_size(&f->payload), params));
    else if (!l->shm)
        copy_weights(c, params, zmq_msg_data(&f->payload), chunk->count);
    else
        count_up(&c->shm_received, chunk->count * sizeof(float));
    set_version(c, h->chunk, have + 1);
    return PS_OK;
}

/* The text of an ERROR frame, printable, as this thread's error. */
static ps_err take_error(ps_wire_frames *f)
{
    char text[400];
    size_t n = f->has_payload ? zmq_msg_size(&f->payload) : 0;
    if (n > sizeof text - 1) n = sizeof text - 1;
    const unsigned char *from = f->has_payload ? zmq_msg_data(&f->payload) : NULL;
    for (size_t i = 0; i < n; i++)
        text[i] = from[i] < ' ' || from[i] == 127 ? '?' : (char)from[i];
    text[n] = '\0';
    return ps_err_set(PS_ERR_PEER, "%s", text);
}

static ps_err take_ready(ps_comm *c, shard_link *l)
{
    if (l->ready) return PS_OK;
    l->ready = true;
    atomic_fetch_add(&c->n_ready, 1);
    progress(c, WAIT_ANY);
    return PS_OK;
}

static ps_err handle(ps_comm *c, shard_link *l, ps_wire_frames *f)
{
    ps_wire_header h;
    PS_TRY(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), &h));
    count_up(&c->bytes_received,
             zmq_msg_size(&f->header) + (f->has_payload ? zmq_msg_size(&f->payload) : 0));
    if (h.kind == PS_MSG_ERROR) return take_error(f);
    if (h.nonce != c->nonce)
        return ps_err_set(PS_ERR_PROTOCOL, "a message of another job");
    if (h.kind == PS_MSG_STALE)
        return ps_err_set(PS_ERR_PEER, "the job is at member epoch %" PRIu64 ", not %u",
                          h.count, c->epoch);
    if (f->n > 2) return ps_err_set(PS_ERR_PROTOCOL, "a message of %d frames", f->n);
    if (h.credit > l->on_the_way)
        return ps_err_set(PS_ERR_PROTOCOL, "more credit than there was to return");
    l->on_the_way -= h.credit;
    switch (h.kind) {
    case PS_MSG_READY:
        return take_ready(c, l);
    case PS_MSG_WEIGHTS:
        return take_weights(c, l, &h, f);
    case PS_MSG_CREDIT:
        return PS_OK;
    default:
        return ps_err_set(PS_ERR_PROTOCOL, "a %s, which only workers send",
                          ps_wire_kind_name(h.kind));
    }
}

static ps_err receive(ps_comm *c, shard_link *l, ps_wire_frames *f)
{
    for (int i = 0; i < MESSAGES_PER_SOCKET; i++) {
        bool got;
        PS_TRY(ps_wire_recv(l->socket, false, f, &got));
        if (!got) return PS_OK;
        ps_err err = handle(c, l, f);
        if (err == PS_ERR_PROTOCOL)
            return ps_err_prefix(err, "shard %u of server %d (host %s) sent",
                                 (uint32_t)(l - c->links), l->server, l->host);
        if (err != PS_OK) return err;
    }
    return PS_OK;
}

/* ---- the thread ---- */

static void take_orders(ps_comm *c)
{
    uint32_t head = atomic_load_explicit(&c->head, memory_order_relaxed);
    uint32_t tail = atomic_load(&c->tail);
    for (; head != tail; head++) {
        const order *o = &c->ring[head & c->ring_mask];
        if (o->kind == PS_MSG_BYE || o->kind == QUIT) {
            c->bye = o->kind == PS_MSG_BYE;
            c->quit = o->kind == QUIT;
            continue;
        }
        shard_link *l = &c->links[c->plan->chunks[o->chunk].shard];
        c->pending[o->chunk] = *o;
        l->waiting[o->chunk / 64] |= UINT64_C(1) << (o->chunk % 64);
        l->n_waiting++;
    }
    atomic_store_explicit(&c->head, head, memory_order_release);
}

/* Sleeps until a message, an order or the job's end; no order is missed, because `asleep`
 * is set before the last look at the queue and read after an order is in it. */
static ps_err sleep_in_poll(ps_comm *c)
{
    uint32_t n = c->n_links;
    atomic_store(&c->asleep, true);
    bool nothing =
        atomic_load(&c->tail) == atomic_load_explicit(&c->head, memory_order_relaxed);
    int rc = zmq_poll(c->items, (int)n + 2, nothing ? -1 : 0);
    int reason = zmq_errno();
    atomic_store(&c->asleep, false);
    if (rc < 0 && reason != EINTR)
        return ps_err_set(PS_ERR_NET, "polling: %s", zmq_strerror(reason));
    uint64_t count;
    if (rc > 0 && c->items[n].revents && read(c->wake_fd, &count, sizeof count) < 0 &&
        errno != EAGAIN)
        return ps_err_errno(PS_ERR_IO, "eventfd");
    if (rc > 0 && c->items[n + 1].revents) return ps_member_check(c->o.member);
    return PS_OK;
}

static ps_err run(ps_comm *c, ps_wire_frames *f)
{
    for (;;) {
        take_orders(c);
        if (c->quit) return PS_OK;
        PS_TRY(send_allowed(c));
        if (c->bye) return send_bye(c);
        PS_TRY(sleep_in_poll(c));
        for (uint32_t i = 0; i < c->n_links; i++)
            if (c->items[i].revents) PS_TRY(receive(c, &c->links[i], f));
    }
}

static void *comm_main(void *arg)
{
    ps_comm *c = arg;
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    ps_err err = run(c, &f);
    ps_wire_frames_close(&f);
    if (err != PS_OK) fail(c, err);
    return NULL;
}

/* ---- the main thread's side ---- */

static ps_err check(ps_comm *c)
{
    int failure = atomic_load(&c->failure);
    if (failure == PS_OK) return PS_OK;
    return ps_err_set((ps_err)failure, "%s", c->failure_text);
}

static ps_err enqueue(ps_comm *c, order what)
{
    uint32_t tail = atomic_load_explicit(&c->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&c->head, memory_order_acquire) > c->ring_mask)
        return ps_err_set(PS_ERR_INTERNAL, "the queue of orders is full");
    c->ring[tail & c->ring_mask] = what;
    atomic_store(&c->tail, tail + 1);
    return PS_OK;
}

static ps_err wake_thread(ps_comm *c)
{
    uint64_t one = 1;
    if (atomic_load(&c->asleep) && write(c->wake_fd, &one, sizeof one) < 0 &&
        errno != EAGAIN)
        return ps_err_errno(PS_ERR_IO, "eventfd");
    return PS_OK;
}

ps_err ps_comm_submit(ps_comm *c, ps_comm_order what, uint64_t step,
                      const uint32_t *chunks, uint32_t n)
{
    static const uint8_t kinds[] = {
        [PS_COMM_INIT] = PS_MSG_INIT,
        [PS_COMM_PUSH] = PS_MSG_PUSH,
        [PS_COMM_PULL] = PS_MSG_PULL,
        [PS_COMM_SETTLE] = PS_MSG_SETTLE,
    };
    PS_TRY(check(c));
    // The thread has nothing to do with these chunks until it takes the order.
    for (uint32_t i = 0; i < n && what == PS_COMM_SETTLE; i++)
        atomic_store(&c->versions[chunks[i]], (int64_t)step - 1);
    for (uint32_t i = 0; i < n; i++)
        PS_TRY(enqueue(c, (order){kinds[what], chunks[i], step}));
    return n ? wake_thread(c) : PS_OK;
}

bool ps_comm_has(const ps_comm *c, uint32_t chunk, int64_t version)
{
    return atomic_load_explicit(&c->versions[chunk], memory_order_acquire) >= version;
}

bool ps_comm_scales(const ps_comm *c)
{
    return c->scales;
}

float ps_comm_loss_scale(const ps_comm *c)
{
    uint32_t bits = atomic_load_explicit(&c->scale_bits, memory_order_relaxed);
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

static double seconds_since(uint64_t ns)
{
    return (double)(ps_clock_ns() - ns) * 1e-9;
}

static ps_err chunk_timeout(ps_comm *c, uint32_t chunk, int64_t version, uint64_t since)
{
    uint32_t shard = c->plan->chunks[chunk].shard;
    const shard_link *l = &c->links[shard];
    return ps_err_set(PS_ERR_TIMEOUT,
                      "version %" PRId64 " of chunk %u is missing: shard %u of server %d "
                      "(host %s, %s) has sent nothing for %.1f s (net.step_timeout_ms); "
                      "it waits for another worker, or does not run",
                      version, chunk, shard, l->server, l->host, l->endpoint,
                      seconds_since(since));
}

/* Sleeps until the thread reports something for wait_id or since_ns + timeout passes
 * without any progress: then *late. */
static void sleep_for(ps_comm *c, uint32_t sequence, uint64_t start_ns,
                      uint64_t timeout_ms, bool *late, uint64_t *since)
{
    uint64_t progress = atomic_load_explicit(&c->progress_ns, memory_order_relaxed);
    *since = progress > start_ns ? progress : start_ns;
    ps_deadline deadline = {*since + timeout_ms * 1000000u};
    *late = ps_deadline_passed(deadline);
    if (!*late) sleep_main(c, sequence, ps_deadline_left_ms_max(deadline, WAIT_SLICE_MS));
}

ps_err ps_comm_wait(ps_comm *c, uint32_t chunk, int64_t version)
{
    if (ps_comm_has(c, chunk, version)) return PS_OK;
    uint64_t start = ps_clock_ns(), since = start;
    uint64_t timeout_ms = (uint64_t)c->o.config->net.step_timeout_ms;
    ps_err err = PS_OK;
    atomic_store(&c->waiting_for, chunk + 1);
    for (bool late = false;;) {
        uint32_t sequence = atomic_load(&c->wake_sequence);
        if (ps_comm_has(c, chunk, version)) break;
        if ((err = check(c)) != PS_OK) break;
        if (late && (err = chunk_timeout(c, chunk, version, since)) != PS_OK) break;
        sleep_for(c, sequence, start, timeout_ms, &late, &since);
    }
    atomic_store(&c->waiting_for, WAIT_NONE);
    return err;
}

static ps_err ready_timeout(const ps_comm *c)
{
    uint32_t missing = c->n_links - atomic_load(&c->n_ready);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "%u of %u shards have not answered within %" PRId64
                      " ms (net.join_timeout_ms); the first endpoint is %s",
                      missing, c->n_links, c->o.config->net.join_timeout_ms,
                      c->links[0].endpoint);
}

ps_err ps_comm_wait_ready(ps_comm *c)
{
    ps_deadline deadline = ps_deadline_in_ms((uint64_t)c->o.config->net.join_timeout_ms);
    ps_err err = PS_OK;
    atomic_store(&c->waiting_for, WAIT_ANY);
    for (;;) {
        uint32_t sequence = atomic_load(&c->wake_sequence);
        if (atomic_load(&c->n_ready) == c->n_links) break;
        if ((err = check(c)) != PS_OK) break;
        if (ps_deadline_passed(deadline)) {
            err = ready_timeout(c);
            break;
        }
        sleep_main(c, sequence, ps_deadline_left_ms_max(deadline, WAIT_SLICE_MS));
    }
    atomic_store(&c->waiting_for, WAIT_NONE);
    return err;
}

void ps_comm_get_stats(const ps_comm *c, ps_comm_stats *out)
{
    *out = (ps_comm_stats){
        .bytes_sent = atomic_load_explicit(&c->bytes_sent, memory_order_relaxed),
        .bytes_received = atomic_load_explicit(&c->bytes_received, memory_order_relaxed),
        .raw_bytes = atomic_load_explicit(&c->raw_bytes, memory_order_relaxed),
        .shm_sent = atomic_load_explicit(&c->shm_sent, memory_order_relaxed),
        .shm_received = atomic_load_explicit(&c->shm_received, memory_order_relaxed),
        .most_on_the_way =
            atomic_load_explicit(&c->most_on_the_way, memory_order_relaxed),
    };
}

/* ---- life ---- */

static uint64_t element_bytes(const ps_comm *c)
{
    return ps_credit_element_bytes(c->codec.codec != PS_CODEC_NONE);
}

static ps_err connect_link(ps_comm *c, uint32_t shard)
{
    shard_link *l = &c->links[shard];
    uint8_t id[PS_WIRE_ID_BYTES];
    ps_wire_id((uint32_t)c->o.rank, id);
    const ps_zsock_options options = {
        .type = ZMQ_DEALER,
        .max_message_bytes =
            (int64_t)(c->plan->max_chunk_count * element_bytes(c) + (64u << 10)),
        .routing_id = id,
        .routing_id_bytes = sizeof id,
    };
    PS_TRY(ps_zsock_open(c->zmq_context, &options, &l->socket));
    PS_TRY(ps_zsock_connect(l->socket, l->endpoint));
    ps_wire_header h = header_for(c, PS_MSG_HELLO);
    h.codec = l->shm ? PS_CODEC_SHM : PS_CODEC_NONE;
    return send_header(c, l, &h, NULL, 0);
}

static ps_err init_link(ps_comm *c, uint32_t shard, int server, int index, bool shm)
{
    const ps_roster_entry *entry = &ps_member_roster(c->o.member)->servers[server];
    shard_link *l = &c->links[shard];
    l->server = server;
    l->host = entry->host;
    l->endpoint = entry->endpoints[index];
    l->shm = shm;
    uint64_t total, largest;
    ps_chunk_codec_step_bytes(&c->codec, c->plan, shard, &total, &largest);
    l->credit =
        ps_credit_of_shard((uint64_t)c->o.config->exchange.credit, total, largest);
    PS_TRY(ps_mem_zalloc(&l->waiting, c->n_words, sizeof *l->waiting, "orders"));
    PS_TRY(connect_link(c, shard));
    c->items[shard] = (zmq_pollitem_t){.socket = l->socket, .events = ZMQ_POLLIN};
    return PS_OK;
}

static ps_err connect_servers(ps_comm *c)
{
    const ps_roster *roster = ps_member_roster(c->o.member);
    uint32_t shard = 0;
    for (int s = 0; s < roster->n_servers; s++) {
        bool shm;
        PS_TRY(ps_shm_offer_arenas(&c->o, s, &shm));
        for (int i = 0; i < roster->servers[s].n_endpoints; i++) {
            if (shard == c->n_links) break;
            PS_TRY(init_link(c, shard++, s, i, shm));
        }
    }
    if (shard == c->n_links) return PS_OK;
    return ps_err_set(PS_ERR_PEER, "the servers offer %u shards, the plan has %u", shard,
                      c->n_links);
}

static ps_err init_codec(ps_comm *c)
{
    uint32_t n = c->plan->n_chunks;
    PS_TRY(ps_chunk_codec_init(&c->codec, c->o.config, c->o.spec));
    PS_TRY(ps_mem_zalloc(&c->encoded, n, sizeof *c->encoded, "codecs"));
    if (c->codec.codec == PS_CODEC_NONE) return PS_OK;
    for (uint32_t i = 0; i < n; i++) {
        const ps_chunk *chunk = &c->plan->chunks[i];
        if (gradient_codec(c, chunk, 0) == PS_CODEC_NONE) continue;
        uint64_t bytes = ps_chunk_codec_most_bytes(&c->codec, chunk, PS_CODED_GRADIENT);
        PS_TRY(ps_mem_zalloc_aligned(&c->encoded[i], bytes, "a payload"));
    }
    if (ps_codec_feeds_back(c->codec.codec))
        PS_TRY(ps_mem_zalloc_large(&c->residual, c->o.grads->bytes, "residuals"));
    return PS_OK;
}

static ps_err init_scale(ps_comm *c)
{
    ps_loss_scale first;
    PS_TRY(ps_loss_scale_init(&first, c->o.config));
    uint32_t bits;
    memcpy(&bits, &first.scale, sizeof bits);
    c->scales = c->codec.overflow = first.on;
    atomic_init(&c->scale_bits, bits);
    return PS_OK;
}

static ps_err alloc_arrays(ps_comm *c)
{
    size_t n = c->plan->n_chunks;
    // INIT or PULL, then PUSH, of every chunk, BYE and QUIT are the most that is queued.
    uint32_t capacity = 16;
    while (capacity < 2 * n + 2)
        capacity *= 2;
    c->ring_mask = capacity - 1;
    c->n_words = (uint32_t)(n + 63) / 64;
    PS_TRY(ps_mem_zalloc(&c->ring, capacity, sizeof *c->ring, "orders"));
    PS_TRY(ps_mem_zalloc(&c->pending, n, sizeof *c->pending, "orders"));
    PS_TRY(ps_mem_zalloc(&c->versions, n, sizeof *c->versions, "versions"));
    PS_TRY(ps_mem_zalloc(&c->links, c->n_links, sizeof *c->links, "links"));
    PS_TRY(ps_mem_zalloc(&c->items, c->n_links + 2, sizeof *c->items, "links"));
    for (size_t i = 0; i < n; i++)
        atomic_init(&c->versions[i], -1);
    return PS_OK;
}

static ps_err open_sockets(ps_comm *c)
{
    c->zmq_context = zmq_ctx_new();
    if (!c->zmq_context) return ps_err_set(PS_ERR_NOMEM, "no ZeroMQ context");
    zmq_ctx_set(c->zmq_context, ZMQ_IO_THREADS, (int)c->o.config->net.io_threads);
    zmq_ctx_set(c->zmq_context, ZMQ_MAX_SOCKETS, (int)c->n_links + 64);
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake_fd < 0) return ps_err_errno(PS_ERR_IO, "eventfd");
    PS_TRY(connect_servers(c));
    uint32_t n = c->n_links;
    c->items[n] = (zmq_pollitem_t){.fd = c->wake_fd, .events = ZMQ_POLLIN};
    c->items[n + 1] =
        (zmq_pollitem_t){.fd = ps_member_abort_fd(c->o.member), .events = ZMQ_POLLIN};
    return PS_OK;
}

ps_err ps_comm_create(const ps_exchange_options *options, ps_comm **out)
{
    *out = NULL;
    ps_comm *c;
    PS_TRY(ps_mem_zalloc(&c, 1, sizeof *c, "the communication thread"));
    const ps_roster *roster = ps_member_roster(options->member);
    c->o = *options;
    c->plan = options->plan;
    c->nonce = roster->nonce;
    c->epoch = roster->epoch;
    c->n_links = options->plan->n_shards;
    c->stream = ps_stream_copy_pays(options->params->bytes * 2); // and as many gradients
    c->wake_fd = -1;
    ps_err err;
    PS_TRY_GOTO(alloc_arrays(c), err, out);
    PS_TRY_GOTO(init_codec(c), err, out);
    PS_TRY_GOTO(init_scale(c), err, out);
    PS_TRY_GOTO(open_sockets(c), err, out);
    if (pthread_create(&c->thread, NULL, comm_main, c) != 0) {
        err = ps_err_set(PS_ERR_NOMEM, "no communication thread");
        goto out;
    }
    c->running = true;
    *out = c;
    return PS_OK;
out:
    ps_comm_destroy(&c);
    return err;
}

static void join_thread(ps_comm *c)
{
    if (c->running) pthread_join(c->thread, NULL);
    c->running = false;
}

ps_err ps_comm_stop(ps_comm *c)
{
    PS_TRY(check(c));
    PS_TRY(enqueue(c, (order){.kind = PS_MSG_BYE}));
    PS_TRY(wake_thread(c));
    join_thread(c);
    PS_TRY(check(c));
    const int linger = BYE_LINGER_MS;
    for (uint32_t i = 0; i < c->n_links; i++)
        zmq_setsockopt(c->links[i].socket, ZMQ_LINGER, &linger, sizeof linger);
    return PS_OK;
}

void ps_comm_destroy(ps_comm **pointer)
{
    ps_comm *c = *pointer;
    if (!c) return;
    if (c->running && enqueue(c, (order){.kind = QUIT}) == PS_OK) (void)wake_thread(c);
    join_thread(c);
    for (uint32_t i = 0; c->links && i < c->n_links; i++) {
        ps_zsock_close(&c->links[i].socket);
        free(c->links[i].waiting);
    }
    if (c->zmq_context) zmq_ctx_term(c->zmq_context);
    if (c->wake_fd >= 0) close(c->wake_fd);
    free(c->links);
    free(c->items);
    free(c->ring);
    free(c->pending);
    free(c->versions);
    for (uint32_t i = 0; c->encoded && i < c->plan->n_chunks; i++)
        free(c->encoded[i]);
    free(c->encoded);
    free(c->residual);
    free(c);
    *pointer = NULL;
}
