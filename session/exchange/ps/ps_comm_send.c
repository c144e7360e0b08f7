#include "ps_comm_send.h"

#include <string.h>

#include "fault_point.h"
#include "param_groups.h"
#include "trace.h"

static ps_err send_header(ps_comm *c, ps_comm_link *l, const ps_wire_header *h,
                          const void *payload, size_t bytes)
{
    uint64_t sent = 0;
    const uint64_t begin_ns = ps_clock_ns();
    // Payloads lie in the arenas, which outlive the sockets. A gradient is overwritten
    // only when the weights that answer it are here: by then it has been read, or is read
    // for a repetition, which the shard ignores.
    ps_err err =
        ps_wire_send(l->socket, NULL, 0, h, payload, bytes, PS_WIRE_BORROW, &sent);
    ps_counter_add_since(&c->send_ns, begin_ns);
    ps_counter_add(&c->bytes_sent, sent);
    ps_counter_add(&c->raw_bytes, sent);
    return err;
}

static bool in_shared_memory(const ps_comm_link *l, int kind)
{
    return l->shm && kind != PS_MSG_RESTORE;
}

static ps_codec gradient_codec(const ps_comm *c, const ps_chunk *chunk, uint64_t step)
{
    return ps_chunk_codec_of(&c->codec, chunk, PS_CODED_GRADIENT, step);
}

/* What is to be sent next of a chunk: its command, or its INIT again. */
static ps_command comm_send_next_of(const ps_comm *c, uint32_t chunk)
{
    const ps_comm_chunk *s = &c->chunks[chunk];
    const ps_command init = {
        .kind = PS_MSG_INIT, .chunk = chunk, .step = ps_comm_first_version(c, chunk)};
    return s->init_due ? init : s->command;
}

static size_t payload_bytes(const ps_comm *c, const ps_comm_link *l,
                            const ps_command *what)
{
    if (!ps_wire_kind_has_payload(what->kind) || in_shared_memory(l, what->kind))
        return 0;
    const ps_chunk *range = &c->plan->chunks[what->chunk];
    if (what->kind != PS_MSG_PUSH || !c->encoded[what->chunk])
        return range->count * sizeof(float);
    return ps_chunk_codec_bytes(&c->codec, range, gradient_codec(c, range, what->step));
}

/* Returns the payload of an INIT or PUSH. A gradient that travels encoded is encoded
 * here, while the main thread computes, and only once: what the codec loses goes into the
 * residual, and a repetition must be the same bytes. */
static const void *payload_of(ps_comm *c, uint32_t chunk, ps_wire_header *h)
{
    const ps_chunk *range = &c->plan->chunks[chunk];
    if (h->kind == PS_MSG_RESTORE) return c->snapshot.arena + range->offset;
    if (h->kind == PS_MSG_INIT) return (const float *)c->o.params->base + range->offset;
    const float *grad = (const float *)c->o.grads->base + range->offset;
    if (!c->encoded[chunk]) return grad;
    const ps_codec codec = gradient_codec(c, range, h->step);
    h->codec = (uint8_t)codec;
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

static ps_err send_numbers(ps_comm *c, ps_comm_link *l, const ps_wire_header *h,
                           const ps_group_numbers *numbers)
{
    const size_t bytes = h->count * sizeof *numbers;
    uint64_t sent = 0;
    if (c->rings)
        PS_TRY(ps_wire_ring_put(&l->rings.to_shard, h, numbers, bytes, &sent));
    else
        PS_TRY(ps_wire_send(l->socket, NULL, 0, h, numbers, bytes, PS_WIRE_COPY, &sent));
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
        PS_TRY(send_numbers(c, l, &h, numbers));
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

static ps_err send_command(ps_comm *c, ps_comm_link *l, const ps_command *what)
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
    if (!ps_wire_kind_has_payload(what->kind)) return send_header(c, l, &h, NULL, 0);
    h.count = range->count;
    if (what->kind == PS_MSG_PUSH) h.push.groups = ps_comm_groups_sent(c, l);
    if (in_shared_memory(l, what->kind)) {
        h.codec = PS_CODEC_SHM;
        ps_counter_add(&c->shm_sent, range->count * sizeof(float));
        return send_header(c, l, &h, NULL, 0);
    }
    size_t bytes = payload_bytes(c, l, what);
    const void *payload = payload_of(c, chunk, &h);
    l->on_the_way += bytes;
    if (l->on_the_way > ps_counter_get(&c->most_on_the_way))
        ps_counter_set(&c->most_on_the_way, l->on_the_way);
    ps_counter_add(&c->raw_bytes, range->count * sizeof(float) - bytes);
    return send_header(c, l, &h, payload, bytes);
}

void ps_comm_send_later(ps_comm *c, const ps_command *what)
{
    ps_comm_chunk *s = &c->chunks[what->chunk];
    s->command = *what;
    s->unanswered = what->kind != PS_MSG_INIT; // what answers that is in `first`
    if (what->kind == PS_MSG_PUSH)
        ps_comm_pace_given(c, c->plan->chunks[what->chunk].shard);
    ps_comm_send_soon(c, what->chunk);
}

void ps_comm_send_soon(ps_comm *c, uint32_t chunk)
{
    ps_comm_link *l = &c->links[c->plan->chunks[chunk].shard];
    uint64_t *word = &l->waiting[chunk / 64], bit = UINT64_C(1) << (chunk % 64);
    l->n_waiting += (*word & bit) == 0;
    *word |= bit;
}

/* The waiting chunk with the highest index: the next forward pass needs it first. */
static uint32_t most_urgent(const ps_comm *c, const ps_comm_link *l)
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
static void note_sent(ps_comm *c, const ps_command *what)
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
static bool may_go(const ps_comm *c, const ps_comm_link *l, const ps_command *what)
{
    if (what->kind == PS_MSG_INIT && c->chunks[what->chunk].init_due) return true;
    return ps_credit_allows(&l->credit, l->on_the_way, payload_bytes(c, l, what));
}

/* The most urgent chunk of a link; *any: there was one that may go. */
static ps_err send_one(ps_comm *c, ps_comm_link *l, bool *any)
{
    if (l->n_waiting == 0 || !l->open) return PS_OK;
    const ps_command what = comm_send_next_of(c, most_urgent(c, l));
    if (!may_go(c, l, &what)) return PS_OK;
    *any = true;
    if (what.kind == PS_MSG_PUSH) PS_TRY(ps_comm_send_groups(c, l));
    const uint64_t begin_ns = what.kind == PS_MSG_PUSH ? ps_trace_now() : 0;
    PS_TRY(send_command(c, l, &what));
    if (what.kind == PS_MSG_PUSH)
        ps_comm_pace_sent(c, (uint32_t)(l - c->links), what.step);
    ps_trace_add_chunk(PS_TRACE_SEND, begin_ns, what.step, what.chunk,
                       (uint32_t)(l - c->links));
    note_sent(c, &what);
    return PS_OK;
}

static ps_err send_bye(ps_comm *c, ps_comm_link *l)
{
    if (l->said_bye || !l->open || l->n_waiting > 0) return PS_OK;
    l->said_bye = true;
    ps_wire_header h = ps_comm_header(c, PS_MSG_BYE);
    return send_header(c, l, &h, NULL, 0);
}

/* One chunk to each shard in turn, so that all links are busy soon. */
ps_err ps_comm_send_allowed(ps_comm *c)
{
    for (bool any = true; any;) {
        any = false;
        for (uint32_t i = 0; i < c->n_links; i++)
            PS_TRY(send_one(c, &c->links[i], &any));
    }
    for (uint32_t i = 0; i < c->n_links && c->bye; i++)
        PS_TRY(send_bye(c, &c->links[i]));
    return PS_OK;
}

ps_err ps_comm_send_hello(ps_comm *c, ps_comm_link *l)
{
    ps_wire_header h = ps_comm_header(c, PS_MSG_HELLO);
    h.codec = l->shm ? PS_CODEC_SHM : PS_CODEC_NONE;
    h.hello.rings = c->rings;
    h.hello.number = ++l->n_hellos;
    return send_header(c, l, &h, NULL, 0);
}
