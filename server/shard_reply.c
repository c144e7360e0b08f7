#include "shard_reply.h"

#include <string.h>

#include "log.h"
#include "shard_rings.h"
#include "trace.h"

enum { FLUSH_COUNT = 1 << 18 }; // elements: 1 MiB of weights

static ps_wire_header header_for(const ps_shard *s, int kind, uint32_t rank)
{
    return (ps_wire_header){
        .version = PS_WIRE_VERSION,
        .kind = (uint8_t)kind,
        .nonce = s->rules.nonce,
        .epoch = s->rules.epoch,
        .rank = rank,
    };
}

static ps_err send_to(ps_shard *s, uint32_t rank, ps_wire_header *h, const void *payload,
                      size_t bytes, ps_wire_pass pass)
{
    ps_shard_peer *p = &s->peers[rank];
    h->credit = p->owed;
    p->owed = 0;
    uint64_t sent = 0;
    ps_err err =
        ps_wire_send(s->router, p->id, sizeof p->id, h, payload, bytes, pass, &sent);
    s->router_idle = false;
    ps_counter_add(&s->bytes_sent, sent);
    if (err == PS_ERR_PEER) PS_DEBUG("peer-gone", "worker=%u", rank);
    return err == PS_ERR_PEER ? PS_OK : err;
}

ps_err ps_shard_reply_short(ps_shard *s, ps_msg_kind kind, uint32_t rank, uint64_t number)
{
    ps_wire_header h = header_for(s, kind, rank);
    if (kind == PS_MSG_READY) h.hello.number = number;
    if (kind == PS_MSG_STALE) h.stale.present = (uint32_t)number;
    return send_to(s, rank, &h, NULL, 0, PS_WIRE_COPY);
}

ps_err ps_shard_reply_credit(ps_shard *s, uint32_t rank)
{
    if (s->peers[rank].owed <= s->credit.explicit_above) return PS_OK;
    return ps_shard_reply_short(s, PS_MSG_CREDIT, rank, 0);
}

/* Sends the encoded change in turn, or, out of turn, a copy of what the worker has or, in
 * bsp, what all other workers have. */
static ps_err send_coded(ps_shard *s, ps_shard_chunk *c, ps_wire_header *h, uint32_t rank,
                         ps_wire_pass pass)
{
    if (pass == PS_WIRE_COPY)
        return send_to(s, rank, h, ps_coded_chunk_known(&c->coded, rank),
                       c->chunk->count * sizeof(float), pass);
    h->codec = (uint8_t)c->coded.reply_codec;
    // At their own pace, the reply to another worker takes this one's place.
    return send_to(s, rank, h, c->coded.reply, c->coded.reply_bytes,
                   s->pace->by_worker ? PS_WIRE_COPY : pass);
}

/* Sends a chunk's weights without a copy: libzmq reads them where the next step will
 * write them. This is safe in BSP. The next write comes only after every worker's push of
 * the next step, and a worker pushes only when it has received these weights whole. (If
 * this connection was lost, it received them over a new one, and has closed this one.) No
 * such push follows an answer out of turn (to repeated pushes and pulls), so these are
 * copied. */
static ps_err shard_reply_send_answer(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                                      ps_msg_kind kind, ps_wire_pass pass)
{
    ps_wire_header h = header_for(s, kind, rank);
    s->pace->stamp(s, c, rank, &h);
    h.chunk = c->index;
    h.count = c->chunk->count;
    const bool same = c->idle && kind == PS_MSG_WEIGHTS && pass == PS_WIRE_BORROW;
    if (same) h.codec = PS_CODEC_IDLE;
    if (same && !s->peers[rank].rings.bell) return send_to(s, rank, &h, NULL, 0, pass);
    if (c->coded.coded) return send_coded(s, c, &h, rank, pass);
    const float *weights =
        c->coded.known ? ps_coded_chunk_known(&c->coded, rank) : c->memory.weights;
    if (!s->peers[rank].shm)
        return send_to(s, rank, &h, weights, c->chunk->count * sizeof(float), pass);
    if (!same) h.codec = PS_CODEC_SHM;
    if (s->peers[rank].rings.bell && pass == PS_WIRE_BORROW)
        return ps_shard_rings_put(s, rank, &h);
    return send_to(s, rank, &h, NULL, 0, pass);
}

ps_err ps_shard_reply_send(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                           ps_msg_kind kind, ps_wire_pass pass)
{
    const uint64_t begin_ns = c->policy.version > 0 ? ps_trace_now() : 0;
    PS_TRY(shard_reply_send_answer(s, c, rank, kind, pass));
    ps_trace_add_chunk(PS_TRACE_REPLY, begin_ns, (uint64_t)c->policy.version - 1,
                       c->index, rank);
    return PS_OK;
}

ps_err ps_shard_reply_out_of_turn(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                                  ps_msg_kind kind)
{
    const ps_shard_peer *p = &s->peers[rank];
    if (p->shm)
        memcpy(p->params + c->chunk->offset, c->memory.weights,
               c->chunk->count * sizeof(float));
    return ps_shard_reply_send(s, c, rank, kind, PS_WIRE_COPY);
}

/* Workers in shared memory have the new weights already. One flush tells them about
 * several chunks, so that they are not woken for each. */
ps_err ps_shard_reply_flush(ps_shard *s)
{
    for (uint32_t i = 0; i < s->n_unsent; i++)
        for (uint32_t r = 0; r < s->rules.n_workers; r++)
            if (s->peers[r].shm)
                PS_TRY(ps_shard_reply_send(s, s->unsent[i], r, PS_MSG_WEIGHTS,
                                           PS_WIRE_BORROW));
    ps_shard_rings_wake(s);
    s->n_unsent = 0;
    s->unsent_count = 0;
    return PS_OK;
}

ps_err ps_shard_reply_weights(ps_shard *s, ps_shard_chunk *c)
{
    bool shared = false;
    for (uint32_t i = 0; i < s->n_senders; i++) {
        const uint32_t r = s->senders[i];
        shared = shared || s->peers[r].shm;
        if (!s->peers[r].shm)
            PS_TRY(ps_shard_reply_send(s, c, r, PS_MSG_WEIGHTS, PS_WIRE_BORROW));
    }
    if (!shared) return PS_OK;
    if (s->n_unsent == s->n_chunks) PS_TRY(ps_shard_reply_flush(s));
    s->unsent[s->n_unsent++] = c;
    s->unsent_count += c->chunk->count;
    return s->unsent_count < FLUSH_COUNT ? PS_OK : ps_shard_reply_flush(s);
}

ps_err ps_shard_reply_state(ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                            uint64_t array, const void *payload, size_t bytes,
                            ps_wire_pass pass)
{
    ps_wire_header h = header_for(s, PS_MSG_STATE, rank);
    h.step = (uint64_t)c->policy.version;
    h.chunk = c->index;
    h.count = c->chunk->count;
    h.state.array = array;
    if (!payload) h.codec = PS_CODEC_SHM;
    return send_to(s, rank, &h, payload, bytes, pass);
}

ps_err ps_shard_reply_restored(ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                               uint64_t array)
{
    ps_wire_header h = header_for(s, PS_MSG_RESTORED, rank);
    h.chunk = c->index;
    h.state.array = array;
    return send_to(s, rank, &h, NULL, 0, PS_WIRE_COPY);
}

ps_err ps_shard_reply_rows(ps_shard *s, uint32_t rank, uint64_t step, uint64_t number,
                           uint64_t all_bytes, uint64_t at, const void *piece,
                           size_t bytes)
{
    ps_wire_header h = header_for(s, PS_MSG_ROWS, rank);
    h.step = step;
    h.count = all_bytes;
    h.rows.number = number;
    h.rows.at = at;
    return send_to(s, rank, &h, piece, bytes, PS_WIRE_COPY);
}

void ps_shard_reply_error(ps_shard *s, uint32_t rank, const char *text)
{
    const ps_shard_peer *p = &s->peers[rank];
    ps_wire_header h = header_for(s, PS_MSG_ERROR, rank);
    uint64_t sent = 0;
    s->router_idle = false;
    if (ps_wire_send(s->router, p->id, sizeof p->id, &h, text, strlen(text), PS_WIRE_COPY,
                     &sent) != PS_OK)
        PS_DEBUG("peer-gone", "while=ERROR");
    ps_counter_add(&s->bytes_sent, sent);
}
