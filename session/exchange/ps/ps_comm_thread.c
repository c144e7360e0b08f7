#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fault_point.h"
#include "log.h"
#include "mem.h"
#include "nontemporal_copy.h"
#include "param_groups.h"
#include "printable.h"
#include "ps_comm_state.h"
#include "tell.h"
#include "trace.h"
#include "zsock.h"

enum { MESSAGES_PER_SOCKET = 32 }; // before other sockets are looked at

/* ---- the queue of commands ---- */

ps_err ps_command_queue_init(ps_command_queue *q, uint32_t n)
{
    uint32_t capacity = 16;
    while (capacity < n)
        capacity *= 2;
    *q = (ps_command_queue){.mask = capacity - 1};
    PS_TRY(PS_NEW(&q->ring, capacity, "commands"));
    return ps_event_init(&q->wake);
}

void ps_command_queue_fini(ps_command_queue *q)
{
    ps_event_fini(&q->wake);
    free(q->ring);
    q->ring = NULL;
}

ps_err ps_command_queue_put(ps_command_queue *q, ps_command command)
{
    uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);
    if (tail - atomic_load_explicit(&q->head, memory_order_acquire) > q->mask)
        return ps_err_set(PS_ERR_INTERNAL, "the queue of commands is full");
    q->ring[tail & q->mask] = command;
    atomic_store(&q->tail, tail + 1);
    return PS_OK;
}

void ps_command_queue_wake(ps_command_queue *q)
{
    if (atomic_load(&q->asleep)) ps_event_set(&q->wake);
}

uint32_t ps_command_queue_count(const ps_command_queue *q)
{
    return atomic_load(&q->tail) - atomic_load_explicit(&q->head, memory_order_relaxed);
}

void ps_command_queue_drop(ps_command_queue *q, uint32_t n)
{
    uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    atomic_store_explicit(&q->head, head + n, memory_order_release);
}

bool ps_command_queue_sleep(ps_command_queue *q)
{
    atomic_store(&q->asleep, true);
    return ps_command_queue_count(q) == 0;
}

void ps_command_queue_awake(ps_command_queue *q, bool woken)
{
    atomic_store(&q->asleep, false);
    if (woken) ps_event_clear(&q->wake);
}

/* ---- versions ---- */

/* Wakes the main thread only for what it waits for. */
static void comm_progress(ps_comm *c, uint32_t wait_id)
{
    atomic_store_explicit(&c->progress_ns, ps_clock_awake_ns(), memory_order_relaxed);
    uint32_t wanted = atomic_load(&c->bell->wanted);
    if (wanted == wait_id || wanted == PS_COMM_WAIT_ANY) ps_bell_ring(c->bell);
}

void ps_comm_set_version(ps_comm *c, uint32_t chunk, int64_t version)
{
    atomic_store(&c->versions[chunk], version);
    if (c->told) c->told(c->told_ctx, chunk, version);
    comm_progress(c, chunk + 1);
}

/* ---- the pace of steps ---- */

void ps_comm_pace_given(ps_comm *c, uint32_t shard)
{
    if (ps_member_tells_pace(c->o.member))
        c->paced.figures[1 + shard] = ps_member_time_ns(c->o.member, ps_clock_ns());
}

void ps_comm_pace_sent(ps_comm *c, uint32_t shard, uint64_t step)
{
    const uint32_t n = c->n_links;
    double *sums = c->paced.figures + 1 + 2 * n;
    if (!ps_member_tells_pace(c->o.member)) return;
    if (c->paced.sent_step != step) {
        memset(sums, 0, n * sizeof *sums);
        memset(c->paced.n_sent, 0, n * sizeof *c->paced.n_sent);
    }
    c->paced.sent_step = step;
    c->paced.n_sent[shard]++;
    sums[shard] += ps_member_time_ns(c->o.member, ps_clock_ns());
}

/* All chunks that were sent to a shard have come back from it. */
static void comm_tell_pace(ps_comm *c, uint64_t step)
{
    const uint32_t n = c->n_links;
    double *f = c->paced.figures, *means = f + 1 + 2 * n;
    // How long a program without steps of its own computes is not known.
    if (c->paced.sent_step != step || atomic_load(&c->computed_step) != step + 1) return;
    f[0] = (double)atomic_load(&c->computed_ns);
    for (uint32_t i = 0; i < n; i++) {
        if (c->paced.n_sent[i] == 0) return;
        means[i] /= c->paced.n_sent[i];
        means[n + i] /= c->paced.n_sent[i];
    }
    ps_member_pace(c->o.member, step, 0, f, ps_pace_of_worker((int)n));
    c->paced.sent_step = 0; // the sums are means now
}

static void comm_pace_had(ps_comm *c, uint32_t shard, uint64_t step)
{
    const uint32_t n = c->n_links;
    double *last = c->paced.figures + 1 + n, *sums = last + 2 * n;
    if (!ps_member_tells_pace(c->o.member)) return;
    if (c->paced.step != step) {
        c->paced.n_had = 0;
        memset(sums, 0, n * sizeof *sums);
    }
    c->paced.step = step;
    const uint64_t now_ns = ps_clock_ns();
    last[shard] = ps_member_time_ns(c->o.member, now_ns);
    sums[shard] += last[shard];
    if (++c->paced.n_had == c->plan->n_chunks &&
        ps_pace_step(&c->paced.pace, step, now_ns))
        comm_tell_pace(c, step);
}

/* ---- sending: as the credits allow, the most urgent chunk of each link first ---- */

static ps_zsock_item *comm_item(ps_comm *c, const ps_comm_link *l)
{
    return &c->items[l - c->links];
}

static ps_err comm_send_header(ps_comm *c, ps_comm_link *l, const ps_wire_header *h,
                               const void *payload, size_t bytes)
{
    uint64_t sent = 0;
    const uint64_t begin_ns = ps_clock_ns();
    // Payloads lie in the arenas, which outlive the sockets. A gradient is overwritten
    // only when the weights that answer it are here: by then it has been read, or is read
    // for a repetition, which the shard ignores.
    ps_err err =
        ps_wire_send(l->socket, NULL, 0, h, payload, bytes, PS_WIRE_BORROW, &sent);
    comm_item(c, l)->idle = false;
    ps_counter_add_since(&c->send_ns, begin_ns);
    ps_counter_add(&c->bytes_sent, sent);
    ps_counter_add(&c->raw_bytes, sent);
    return err;
}

static bool comm_in_shared_memory(const ps_comm_link *l, int kind)
{
    return l->shm && kind != PS_MSG_RESTORE;
}

static ps_codec comm_gradient_codec(const ps_comm *c, const ps_chunk *chunk,
                                    uint64_t step)
{
    return ps_chunk_codec_of(&c->codec, chunk, PS_CODED_GRADIENT, step);
}

/* What is to be sent next of a chunk: its command, or its INIT again. */
static ps_command comm_send_next(const ps_comm *c, uint32_t chunk)
{
    const ps_comm_chunk *s = &c->chunks[chunk];
    const ps_command init = {
        .kind = PS_MSG_INIT, .chunk = chunk, .step = ps_comm_first_version(c, chunk)};
    return s->init_due ? init : s->command;
}

/* A gradient that does not travel: the step is another optimizer's. */
static bool comm_is_idle(const ps_comm *c, const ps_command *what)
{
    return what->kind == PS_MSG_PUSH &&
           ps_chunk_is_idle(&c->plan->chunks[what->chunk], c->o.table, what->step_of);
}

static size_t comm_payload_bytes(const ps_comm *c, const ps_comm_link *l,
                                 const ps_command *what)
{
    if (comm_is_idle(c, what)) return 0;
    if (!ps_wire_kind_has_payload(what->kind) || comm_in_shared_memory(l, what->kind))
        return 0;
    const ps_chunk *range = &c->plan->chunks[what->chunk];
    if (what->kind != PS_MSG_PUSH || !c->encoded[what->chunk])
        return range->count * sizeof(float);
    return ps_chunk_codec_bytes(&c->codec, range,
                                comm_gradient_codec(c, range, what->step));
}

/* Returns the payload of an INIT or PUSH. A gradient that travels encoded is encoded
 * here, while the main thread computes, and only once: what the codec loses goes into the
 * residual, and a repetition must be the same bytes. Or a device has done it already. */
static const void *comm_payload_of(ps_comm *c, uint32_t chunk, ps_wire_header *h)
{
    const ps_chunk *range = &c->plan->chunks[chunk];
    if (h->kind == PS_MSG_RESTORE) return c->snapshot.arena + range->offset;
    if (h->kind == PS_MSG_INIT) return (const float *)c->o.params->base + range->offset;
    const float *grad = (const float *)c->o.grads->base + range->offset;
    if (!c->encoded[chunk]) return grad;
    const ps_codec codec = comm_gradient_codec(c, range, h->step);
    h->codec = (uint8_t)codec;
    if (c->o.coded) return ps_coded_arena_payload(c->o.coded, range);
    if (c->chunks[chunk].encoded_step == h->step + 1) return c->encoded[chunk];
    c->chunks[chunk].encoded_step = h->step + 1;
    float *kept =
        ps_chunk_codec_keeps(&c->codec, h->step) ? c->residual + range->offset : NULL;
    const uint64_t begin_ns = ps_clock_ns();
    if (kept && c->residual_before)
        memcpy(c->residual_before + range->offset, kept, range->count * sizeof *kept);
    ps_chunk_codec_encode(&c->codec, range, codec, grad, kept,
                          ps_codec_draw_key(h->rank, h->step), c->encoded[chunk]);
    ps_counter_add_since(&c->encode_ns, begin_ns);
    ps_trace_add_chunk(PS_TRACE_ENCODE, begin_ns, h->step, chunk, range->shard);
    return c->encoded[chunk];
}

static ps_err comm_send_numbers(ps_comm *c, ps_comm_link *l, const ps_wire_header *h,
                                const ps_group_numbers *numbers)
{
    const size_t bytes = h->count * sizeof *numbers;
    uint64_t sent = 0;
    if (c->rings) {
        PS_TRY(ps_wire_ring_put(&l->rings.to_shard, h, numbers, bytes, &sent));
    } else {
        comm_item(c, l)->idle = false;
        PS_TRY(ps_wire_send(l->socket, NULL, 0, h, numbers, bytes, PS_WIRE_COPY, &sent));
    }
    ps_counter_add(&c->bytes_sent, sent);
    ps_counter_add(&c->raw_bytes, sent);
    return PS_OK;
}

ps_err ps_comm_send_groups(ps_comm *c, ps_comm_link *l)
{
    const ps_param_groups *g = c->o.rule->optimizer.groups;
    const uint64_t n = g && c->o.rank == 0 ? g->n_sets : 0;
    const uint64_t kept = PS_GROUP_SETS - 1;
    if (n > kept && l->n_groups < n - kept) l->n_groups = n - kept;
    for (; l->n_groups < n; l->n_groups++) {
        ps_wire_header h = ps_comm_header(c, PS_MSG_GROUPS);
        const ps_group_numbers *numbers = ps_param_groups_get(g, l->n_groups, &h.step);
        h.count = (uint64_t)g->n;
        PS_TRY(comm_send_numbers(c, l, &h, numbers));
    }
    return PS_OK;
}

uint64_t ps_comm_groups_sent(const ps_comm *c, const ps_comm_link *l)
{
    const ps_param_groups *g = c->o.rule->optimizer.groups;
    uint64_t from;
    if (l->n_groups == 0) return 0;
    (void)ps_param_groups_get(g, l->n_groups - 1, &from);
    return from + 1;
}

static ps_err comm_send_command(ps_comm *c, ps_comm_link *l, const ps_command *what)
{
    const uint32_t chunk = what->chunk;
    const ps_chunk *range = &c->plan->chunks[chunk];
    ps_wire_header h = ps_comm_header(c, what->kind);
    h.step = what->step;
    h.chunk = chunk;
    if (what->kind == PS_MSG_FETCH || what->kind == PS_MSG_RESTORE)
        h.state.array = c->snapshot.array;
    if (what->kind == PS_MSG_FETCH && c->snapshot.over_gradients && l->shm)
        h.codec = PS_CODEC_SHM;
    if (!ps_wire_kind_has_payload(what->kind)) return comm_send_header(c, l, &h, NULL, 0);
    h.count = range->count;
    if (what->kind == PS_MSG_PUSH) {
        h.push.groups = ps_comm_groups_sent(c, l);
        h.push.step_of = what->step_of;
    }
    if (comm_is_idle(c, what)) {
        h.codec = PS_CODEC_IDLE;
        return comm_send_header(c, l, &h, NULL, 0);
    }
    if (comm_in_shared_memory(l, what->kind)) {
        h.codec = PS_CODEC_SHM;
        ps_counter_add(&c->shm_sent, range->count * sizeof(float));
        return comm_send_header(c, l, &h, NULL, 0);
    }
    size_t bytes = comm_payload_bytes(c, l, what);
    const void *payload = comm_payload_of(c, chunk, &h);
    l->on_the_way += bytes;
    if (l->on_the_way > ps_counter_get(&c->most_on_the_way))
        ps_counter_set(&c->most_on_the_way, l->on_the_way);
    ps_counter_add(&c->raw_bytes, range->count * sizeof(float) - bytes);
    return comm_send_header(c, l, &h, payload, bytes);
}

/* The chunk has something to send, perhaps again. */
static void comm_send_soon(ps_comm *c, uint32_t chunk)
{
    ps_comm_link *l = &c->links[c->plan->chunks[chunk].shard];
    uint64_t *word = &l->waiting[chunk / 64], bit = UINT64_C(1) << (chunk % 64);
    l->n_waiting += (*word & bit) == 0;
    *word |= bit;
}

void ps_comm_send_later(ps_comm *c, const ps_command *what)
{
    ps_comm_chunk *s = &c->chunks[what->chunk];
    s->command = *what;
    s->unanswered = what->kind != PS_MSG_INIT; // what answers that is in `first`
    if (what->kind == PS_MSG_PUSH)
        ps_comm_pace_given(c, c->plan->chunks[what->chunk].shard);
    comm_send_soon(c, what->chunk);
}

/* The waiting chunk with the highest index: the next forward pass needs it first. */
static uint32_t comm_most_urgent(const ps_comm *c, const ps_comm_link *l)
{
    uint32_t w = c->n_words;
    while (l->waiting[--w] == 0)
        ;
    return w * 64 + 63 - (uint32_t)__builtin_clzll(l->waiting[w]);
}

void ps_comm_send_no_more(ps_comm *c, uint32_t chunk)
{
    ps_comm_link *l = &c->links[c->plan->chunks[chunk].shard];
    uint64_t *word = &l->waiting[chunk / 64], bit = UINT64_C(1) << (chunk % 64);
    l->n_waiting -= (*word & bit) != 0;
    *word &= ~bit;
}

/* After an INIT that is sent again comes the chunk's command, if that is not answered. */
static void comm_note_sent(ps_comm *c, const ps_command *what)
{
    ps_comm_chunk *s = &c->chunks[what->chunk];
    PS_FAULT_POINT("chunk.pushed");
    bool more = s->init_due && s->unanswered;
    s->init_due = false;
    if (!more) ps_comm_send_no_more(c, what->chunk);
    if (what->kind != PS_MSG_INIT || s->first) return;
    s->first = true;
    ps_comm_set_version(c, what->chunk, (int64_t)ps_comm_first_version(c, what->chunk));
}

/* An INIT that is sent again does not wait for credit. The shard takes it over at once,
 * and may answer gradients of other chunks, with their credit, only when it has the one
 * that follows the INIT. */
static bool comm_may_go(const ps_comm *c, const ps_comm_link *l, const ps_command *what)
{
    if (what->kind == PS_MSG_INIT && c->chunks[what->chunk].init_due) return true;
    return ps_credit_allows(&l->credit, l->on_the_way, comm_payload_bytes(c, l, what));
}

/* The most urgent chunk of a link; *any: there was one that may go. */
static ps_err comm_send_one(ps_comm *c, ps_comm_link *l, bool *any)
{
    if (l->n_waiting == 0 || !l->open) return PS_OK;
    const ps_command what = comm_send_next(c, comm_most_urgent(c, l));
    if (!comm_may_go(c, l, &what)) return PS_OK;
    *any = true;
    if (what.kind == PS_MSG_PUSH) PS_TRY(ps_comm_send_groups(c, l));
    const uint64_t begin_ns = what.kind == PS_MSG_PUSH ? ps_trace_now() : 0;
    PS_TRY(comm_send_command(c, l, &what));
    if (what.kind == PS_MSG_PUSH)
        ps_comm_pace_sent(c, (uint32_t)(l - c->links), what.step);
    ps_trace_add_chunk(PS_TRACE_SEND, begin_ns, what.step, what.chunk,
                       (uint32_t)(l - c->links));
    comm_note_sent(c, &what);
    return PS_OK;
}

static ps_err comm_send_bye(ps_comm *c, ps_comm_link *l)
{
    if (l->said_bye || !l->open || l->n_waiting > 0) return PS_OK;
    l->said_bye = true;
    ps_wire_header h = ps_comm_header(c, PS_MSG_BYE);
    h.bye.returns = c->returns;
    return comm_send_header(c, l, &h, NULL, 0);
}

/* One chunk to each shard in turn, so that all links are busy soon. */
ps_err ps_comm_send_allowed(ps_comm *c)
{
    for (bool any = true; any;) {
        any = false;
        for (uint32_t i = 0; i < c->n_links; i++) {
            PS_TRY(ps_comm_rows_send_piece(c, &c->links[i], &any));
            PS_TRY(comm_send_one(c, &c->links[i], &any));
        }
    }
    for (uint32_t i = 0; i < c->n_links && c->bye; i++)
        PS_TRY(comm_send_bye(c, &c->links[i]));
    return PS_OK;
}

/* Over a new connection, with the next number. */
static ps_err comm_send_hello(ps_comm *c, ps_comm_link *l)
{
    ps_wire_header h = ps_comm_header(c, PS_MSG_HELLO);
    h.codec = l->shm ? PS_CODEC_SHM : PS_CODEC_NONE;
    h.hello.rings = c->rings;
    h.hello.number = ++l->n_hellos;
    if (c->o.member) h.hello.back = ps_member_reentry(c->o.member).push;
    return comm_send_header(c, l, &h, NULL, 0);
}

/* ---- mending ---- */

/* ZeroMQ makes a lost connection to a shard again. Then everything that the shard has not
 * answered is sent again. The shard counts it once. */
ps_err ps_comm_mend_news(ps_comm *c, ps_comm_link *l)
{
    ps_zsock_event event, last = PS_ZSOCK_NOTHING;
    while ((event = ps_zsock_monitor_read(l->monitor, NULL)) != PS_ZSOCK_NOTHING)
        last = event;
    if (last == PS_ZSOCK_NOTHING) return PS_OK;
    // Credit that was used on a lost connection does not come back.
    l->open = false;
    if (atomic_load(&l->lost_ns) == 0) atomic_store(&l->lost_ns, ps_clock_awake_ns());
    return last == PS_ZSOCK_CONNECTED ? comm_send_hello(c, l) : PS_OK;
}

/* All that the shard has not answered waits again. Returns of how many chunks. */
static uint32_t comm_repeat_unanswered(ps_comm *c, ps_comm_link *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->plan->n_chunks; i++) {
        ps_comm_chunk *chunk = &c->chunks[i];
        if (&c->links[c->plan->chunks[i].shard] != l) continue;
        chunk->init_due = chunk->first;
        if (!chunk->first && !chunk->unanswered) continue;
        comm_send_soon(c, i);
        n++;
    }
    return n;
}

ps_err ps_comm_mend_ready(ps_comm *c, ps_comm_link *l, uint64_t number)
{
    if (l->open || number != l->n_hellos) return PS_OK; // of an earlier connection
    l->open = true;
    l->on_the_way = 0;
    if (!c->rings) l->n_groups = 0; // what is in a ring is not lost
    uint64_t lost_ns = atomic_exchange(&l->lost_ns, 0);
    if (!l->known) {
        l->known = true;
        atomic_fetch_add(&c->n_ready, 1);
        comm_progress(c, PS_COMM_WAIT_ANY);
        return PS_OK;
    }
    const uint32_t repeated = comm_repeat_unanswered(c, l) + ps_comm_rows_repeat(l);
    ps_tell("mended", "{s:i}", "repeated", (int)repeated);
    PS_WARN("connection-mended", "to=shard-%u at=%s after_ms=%.0f repeated=%u",
            (uint32_t)(l - c->links), l->endpoint,
            (double)(ps_clock_awake_ns() - lost_ns) * 1e-6, repeated);
    l->said_bye = l->left;
    return PS_OK;
}

/* ---- receiving: checked against the plan; weights go to the arena ---- */

/* Not the weights but their encoded change since the last version. */
static bool comm_is_change(const ps_comm *c, const ps_wire_header *h)
{
    if (!c->encoded[h->chunk] || h->codec == PS_CODEC_NONE || h->step == 0) return false;
    return h->codec == (uint8_t)ps_chunk_codec_of(&c->codec, &c->plan->chunks[h->chunk],
                                                  PS_CODED_CHANGE, h->step - 1);
}

static ps_err comm_check_weights(const ps_comm *c, const ps_comm_link *l,
                                 const ps_wire_header *h, const ps_wire_frames *f)
{
    if (h->chunk >= c->plan->n_chunks || &c->links[c->plan->chunks[h->chunk].shard] != l)
        return ps_err_set(PS_ERR_PROTOCOL, "weights of chunk %u, which is not its own",
                          h->chunk);
    const ps_chunk *chunk = &c->plan->chunks[h->chunk];
    uint64_t count = chunk->count, wanted = count * sizeof(float);
    const bool idle = h->kind == PS_MSG_WEIGHTS && h->codec == PS_CODEC_IDLE;
    bool shm = h->codec == PS_CODEC_SHM;
    bool coded = h->kind == PS_MSG_WEIGHTS && comm_is_change(c, h);
    size_t bytes = f->has_payload ? zmq_msg_size(&f->payload) : 0;
    if (shm || idle) wanted = 0;
    if (coded) wanted = ps_chunk_codec_bytes(&c->codec, chunk, (ps_codec)h->codec);
    if (h->count != count || (shm != l->shm && !idle) || bytes != wanted ||
        (!shm && !idle && !coded && h->codec != PS_CODEC_NONE))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "weights of chunk %u with %" PRIu64
                          " elements in %zu bytes; the plan has %" PRIu64 " elements",
                          h->chunk, h->count, bytes, count);
    return PS_OK;
}

static void comm_copy_weights(const ps_comm *c, float *to, const float *from, uint64_t n)
{
    if (c->bypass_caches) {
        ps_nontemporal_copy(to, from, n);
        ps_nontemporal_copy_done();
    } else {
        memcpy(to, from, n * sizeof *from);
    }
}

/* A loss scale belongs to a version: all chunks and shards send the same one. */
static ps_err comm_take_scale(ps_comm *c, const ps_wire_header *h)
{
    // Workers rest after the last fragment.
    const bool last = c->plan->chunks[h->chunk].fragment + 1 == c->plan->fragments.n;
    if (last) atomic_store_explicit(&c->rest, h->weights.flags, memory_order_relaxed);
    if (!c->o.rule->scale.on) return PS_OK;
    float scale;
    memcpy(&scale, &h->weights.scale, sizeof scale);
    uint32_t before = atomic_load_explicit(&c->scale_bits, memory_order_relaxed);
    bool newer = h->step > c->scale_version;
    if (!(scale > 0) || !isfinite(scale) || (!newer && h->weights.scale != before))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "version %" PRIu64 " of chunk %u with the loss scale %g; other "
                          "chunks have another",
                          h->step, h->chunk, (double)scale);
    c->scale_version = h->step;
    atomic_store_explicit(&c->scale_bits, h->weights.scale, memory_order_relaxed);
    return PS_OK;
}

/* Whether the chunk's command waits for this. Otherwise it answers a repetition: its
 * weights are here already, and perhaps in use. A chunk with an EXACT request counts as
 * one version older, so repeated weights of its version must not pass for the exact ones.
 */
static bool comm_is_awaited(const ps_comm *c, const ps_wire_header *h, int64_t have)
{
    const ps_comm_chunk *s = &c->chunks[h->chunk];
    if (have >= 0 && h->step <= (uint64_t)have) return false;
    if (s->command.kind == PS_MSG_FETCH || s->command.kind == PS_MSG_RESTORE)
        return false;
    return s->unanswered &&
           (s->command.kind == PS_MSG_EXACT) == (h->kind == PS_MSG_EXACT_WEIGHTS);
}

/* The gradient that these weights answer did not count. */
static void comm_forget_dropped(ps_comm *c, const ps_wire_header *h)
{
    const ps_chunk *chunk = &c->plan->chunks[h->chunk];
    const bool dropped = c->chunks[h->chunk].command.kind == PS_MSG_PUSH &&
                         (h->weights.flags & PS_WIRE_DROPPED) != 0;
    if (!dropped || !c->residual_before || !c->encoded[h->chunk] ||
        !ps_chunk_codec_keeps(&c->codec, h->step - 1))
        return;
    memcpy(c->residual + chunk->offset, c->residual_before + chunk->offset,
           chunk->count * sizeof *c->residual);
}

static ps_err comm_take_weights(ps_comm *c, ps_comm_link *l, const ps_wire_header *h,
                                ps_wire_frames *f)
{
    PS_TRY(comm_check_weights(c, l, h, f));
    ps_comm_chunk *state = &c->chunks[h->chunk];
    state->first = state->init_due = false; // no weights without first ones
    int64_t have = atomic_load_explicit(&c->versions[h->chunk], memory_order_relaxed);
    if (!comm_is_awaited(c, h, have)) return PS_OK;
    if (h->step != (uint64_t)(have + 1))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "version %" PRIu64 " of chunk %u after version %" PRId64,
                          h->step, h->chunk, have);
    const uint64_t begin_ns = state->command.kind == PS_MSG_PUSH ? ps_trace_now() : 0;
    PS_TRY(comm_take_scale(c, h));
    comm_forget_dropped(c, h);
    const ps_chunk *chunk = &c->plan->chunks[h->chunk];
    float *params = (float *)c->o.params->base + chunk->offset;
    if (comm_is_change(c, h) && ps_optimizer_adds_up(&c->o.rule->optimizer))
        memset(params, 0, chunk->count * sizeof *params); // not a change, but a sum
    if (h->codec == PS_CODEC_IDLE)
        ;                          // those of the version before
    else if (comm_is_change(c, h)) // the shard adds the same to its copy of our weights
        PS_TRY(ps_chunk_codec_decode_change(&c->codec, chunk, (ps_codec)h->codec,
                                            zmq_msg_data(&f->payload),
                                            zmq_msg_size(&f->payload), params));
    else if (!l->shm)
        comm_copy_weights(c, params, zmq_msg_data(&f->payload), chunk->count);
    else
        ps_counter_add(&c->shm_received, chunk->count * sizeof(float));
    state->unanswered = false;
    ps_comm_send_no_more(c, h->chunk);
    ps_trace_add_chunk(PS_TRACE_DECODE, begin_ns, h->step - 1, h->chunk, chunk->shard);
    if (state->command.kind == PS_MSG_PUSH) comm_pace_had(c, chunk->shard, h->step - 1);
    PS_FAULT_POINT("weights.taken");
    ps_comm_set_version(c, h->chunk, have + 1);
    return PS_OK;
}

/* The text of an ERROR frame, printable, as this thread's error. */
static ps_err comm_take_error(ps_wire_frames *f)
{
    char said[400] = "", text[400];
    size_t n = f->has_payload ? zmq_msg_size(&f->payload) : 0;
    if (n > sizeof said - 1) n = sizeof said - 1;
    if (n > 0) memcpy(said, zmq_msg_data(&f->payload), n);
    ps_printable(said, text, sizeof text);
    return ps_err_set(PS_ERR_PEER, "%s", text);
}

static ps_err comm_take_left(ps_comm *c, ps_comm_link *l)
{
    c->n_left += !l->left;
    l->left = true;
    return PS_OK;
}

/* Until the shard has answered the HELLO, credit belongs to the connection before and is
 * ignored: what was on the way there is sent, and credited, again. */
static ps_err comm_take_credit(ps_comm_link *l, uint64_t credit)
{
    if (!l->open) return PS_OK;
    if (credit > l->on_the_way)
        return ps_err_set(PS_ERR_PROTOCOL, "more credit than there was to return");
    l->on_the_way -= credit;
    return PS_OK;
}

static ps_err comm_handle(ps_comm *c, ps_comm_link *l, ps_wire_frames *f)
{
    ps_wire_header h;
    PS_TRY(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), &h));
    ps_counter_add(&c->bytes_received,
                   zmq_msg_size(&f->header) +
                       (f->has_payload ? zmq_msg_size(&f->payload) : 0));
    if (h.kind == PS_MSG_ERROR) return comm_take_error(f);
    if (h.nonce != c->nonce)
        return ps_err_set(PS_ERR_PROTOCOL, "a message of another job");
    // All workers have said BYE, so the shard serves the next table.
    if (h.kind == PS_MSG_STALE && l->said_bye && c->returns) return comm_take_left(c, l);
    if (h.kind == PS_MSG_STALE)
        return ps_err_set(PS_ERR_PEER, "the job is at member epoch %u, not %u",
                          h.stale.present, c->epoch);
    if (ps_wire_from_worker(h.kind))
        return ps_err_set(PS_ERR_PROTOCOL, "a %s, which only workers send",
                          ps_wire_kind_name(h.kind));
    if (f->n > 2) return ps_err_set(PS_ERR_PROTOCOL, "a message of %d frames", f->n);
    PS_TRY(comm_take_credit(l, h.credit));
    switch (h.kind) {
    case PS_MSG_READY:
        return ps_comm_mend_ready(c, l, h.hello.number);
    case PS_MSG_WEIGHTS:
    case PS_MSG_EXACT_WEIGHTS:
        return comm_take_weights(c, l, &h, f);
    case PS_MSG_STATE:
    case PS_MSG_RESTORED:
        return ps_comm_snapshot_take(c, l, &h, f);
    case PS_MSG_ROWS:
        PS_TRY(ps_comm_rows_take(c, l, &h, f));
        comm_progress(c, PS_COMM_WAIT_ROWS);
        return PS_OK;
    case PS_MSG_LEFT:
        return comm_take_left(c, l);
    default: // CREDIT
        return PS_OK;
    }
}

static ps_err comm_name_sender(const ps_comm *c, const ps_comm_link *l, ps_err err)
{
    if (err != PS_ERR_PROTOCOL) return err;
    return ps_err_prefix(err, "shard %u of server %d (host %s) sent",
                         (uint32_t)(l - c->links), l->server, l->host);
}

ps_err ps_comm_receive(ps_comm *c, ps_comm_link *l, ps_wire_frames *f)
{
    for (int i = 0; i < MESSAGES_PER_SOCKET; i++) {
        bool got;
        PS_TRY(ps_wire_recv(l->socket, false, f, &got));
        comm_item(c, l)->idle = !got;
        if (!got) return PS_OK;
        PS_TRY(comm_name_sender(c, l, comm_handle(c, l, f)));
    }
    return PS_OK;
}

/* The weights are in the arena already. */
static ps_err comm_handle_ring(ps_comm *c, ps_comm_link *l, ps_wire_frames *f)
{
    ps_wire_header h;
    const uint64_t begin_ns = ps_trace_now();
    PS_TRY(ps_wire_decode(zmq_msg_data(&f->header), zmq_msg_size(&f->header), &h));
    ps_counter_add(&c->bytes_received, zmq_msg_size(&f->header));
    if (h.nonce != c->nonce)
        return ps_err_set(PS_ERR_PROTOCOL, "a message of another job");
    if (h.kind != PS_MSG_WEIGHTS || f->has_payload)
        return ps_err_set(PS_ERR_PROTOCOL, "a %s through a ring",
                          ps_wire_kind_name(h.kind));
    PS_TRY(comm_check_weights(c, l, &h, f));
    const int64_t have =
        atomic_load_explicit(&c->versions[h.chunk], memory_order_relaxed);
    if (!atomic_exchange(&c->chunks[h.chunk].in_ring, false) ||
        h.step != (uint64_t)(have + 1))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "version %" PRIu64 " of chunk %u after version %" PRId64,
                          h.step, h.chunk, have);
    PS_TRY(comm_take_scale(c, &h));
    c->n_taken++;
    if (h.codec == PS_CODEC_SHM)
        ps_counter_add(&c->shm_received, h.count * sizeof(float));
    const uint32_t shard = c->plan->chunks[h.chunk].shard;
    ps_trace_add_chunk(PS_TRACE_DECODE, begin_ns, h.step - 1, h.chunk, shard);
    if (ps_comm_is_paced(c)) comm_pace_had(c, shard, h.step - 1);
    atomic_store_explicit(&c->versions[h.chunk], have + 1, memory_order_release);
    return PS_OK;
}

ps_err ps_comm_receive_ring(ps_comm *c, ps_comm_link *l)
{
    for (uint32_t i = 0; i < c->plan->n_chunks; i++) {
        bool got;
        ps_err err =
            ps_wire_ring_take(&l->rings.to_worker, NULL, 0, &c->ring_frames, &got);
        if (err == PS_OK && !got) return PS_OK;
        if (err == PS_OK) err = comm_handle_ring(c, l, &c->ring_frames);
        if (err != PS_OK) return comm_name_sender(c, l, err);
        atomic_store_explicit(&c->progress_ns, ps_clock_awake_ns(), memory_order_relaxed);
    }
    return PS_OK;
}

/* ---- the thread ---- */

static void comm_take_commands(ps_comm *c)
{
    const uint32_t n = ps_command_queue_count(&c->commands);
    for (uint32_t i = 0; i < n; i++) {
        const ps_command *o = ps_command_queue_peek(&c->commands, i);
        c->quit |= o->kind == PS_COMM_QUIT;
        if (o->kind == PS_MSG_BYE) {
            c->bye = true;
            c->bye_deadline = ps_deadline_in_ms(c->o.settings.step_timeout_ms);
        } else if (ps_wire_is_rows(o->kind)) {
            ps_comm_rows_later(c, o->chunk);
        } else if (o->kind != PS_COMM_QUIT) {
            ps_comm_send_later(c, o);
        }
    }
    ps_command_queue_drop(&c->commands, n);
}

/* Sleeps until a message, a command, news of a connection, the job's end, or, after BYE,
 * the deadline. */
static ps_err comm_sleep_in_poll(ps_comm *c)
{
    uint32_t n = c->n_links;
    bool nothing = ps_command_queue_sleep(&c->commands);
    int ms = c->bye ? ps_deadline_left_ms(c->bye_deadline) : -1;
    int rc = ps_zsock_poll(c->items, c->fds, 2 * (int)n + 2, nothing ? ms : 0);
    int reason = zmq_errno();
    ps_command_queue_awake(&c->commands, rc > 0 && c->items[n].ready);
    if (rc < 0 && reason != EINTR)
        return ps_err_set(PS_ERR_NET, "polling: %s", zmq_strerror(reason));
    if (rc > 0 && c->items[n + 1].ready) return ps_member_check(c->o.member);
    return PS_OK;
}

static ps_err comm_bye_timeout(const ps_comm *c)
{
    const ps_comm_link *l = c->links;
    while (l->left)
        l++;
    char lost[128];
    return ps_err_set(PS_ERR_TIMEOUT,
                      "shard %u of server %d (host %s, %s) has not answered a BYE within "
                      "%" PRIu64 " ms (net.step_timeout_ms)%s",
                      (uint32_t)(l - c->links), l->server, l->host, l->endpoint,
                      c->o.settings.step_timeout_ms,
                      ps_comm_lost_text(l, lost, sizeof lost));
}

static ps_err comm_run(ps_comm *c, ps_wire_frames *f)
{
    const uint32_t n = c->n_links;
    for (uint32_t i = 0; i < n; i++)
        PS_TRY(ps_comm_mend_news(c, &c->links[i])); // before the first poll
    for (;;) {
        comm_take_commands(c);
        if (c->quit) return PS_OK;
        PS_TRY(ps_comm_send_allowed(c));
        if (c->bye && c->n_left == n) return PS_OK;
        if (c->bye && ps_deadline_passed(c->bye_deadline)) return comm_bye_timeout(c);
        PS_TRY(comm_sleep_in_poll(c));
        for (uint32_t i = 0; i < n; i++) {
            // Messages of a lost connection come before the news of a new one.
            if (c->items[i].ready) PS_TRY(ps_comm_receive(c, &c->links[i], f));
            if (c->items[n + 2 + i].ready) PS_TRY(ps_comm_mend_news(c, &c->links[i]));
        }
    }
}

void *ps_comm_main(void *arg)
{
    ps_comm *c = arg;
    ps_wire_frames f;
    ps_wire_frames_open(&f);
    ps_err err = comm_run(c, &f);
    ps_wire_frames_close(&f);
    if (err != PS_OK) ps_comm_give_up(c, err);
    return NULL;
}
