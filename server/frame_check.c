#include "frame_check.h"

#include <inttypes.h>

static ps_frame_class frame_bad(const char *what, const ps_wire_header *h)
{
    ps_err_set(PS_ERR_PROTOCOL, "%s (%s, chunk %u, step %" PRIu64 ")", what,
               ps_wire_kind_name(h->kind), h->chunk, h->step);
    return PS_FRAME_BAD;
}

/* The codec and size that a payload of the chunk has in its step. First weights are not
 * encoded. */
static ps_codec frame_expected(const ps_frame_rules *rules, const ps_wire_header *h,
                               const ps_chunk *chunk, uint64_t *bytes)
{
    ps_codec codec = PS_CODEC_NONE;
    if (rules->codec && h->kind == PS_MSG_PUSH)
        codec = ps_chunk_codec_of(rules->codec, chunk, PS_CODED_GRADIENT, h->step);
    *bytes = codec == PS_CODEC_NONE ? chunk->count * sizeof(float)
                                    : ps_chunk_codec_bytes(rules->codec, chunk, codec);
    return codec;
}

/* A step of another optimizer's has no gradient of the chunk, and one of its own has. */
static ps_frame_class frame_check_step_of(const ps_frame_rules *rules,
                                          const ps_wire_header *h, const ps_chunk *chunk)
{
    if (h->kind != PS_MSG_PUSH)
        return h->codec != PS_CODEC_IDLE ? PS_FRAME_GOOD
                                         : frame_bad("no payload where one belongs", h);
    if (ps_chunk_is_idle(chunk, rules->table, h->push.step_of) ==
        (h->codec == PS_CODEC_IDLE))
        return PS_FRAME_GOOD;
    return frame_bad("a gradient that is not of the step's optimizer", h);
}

static ps_frame_class check_payload(const ps_frame_rules *rules, const ps_frame_view *v,
                                    const ps_wire_header *h, const ps_chunk *chunk)
{
    uint64_t count = chunk->count, bytes;
    ps_codec codec = frame_expected(rules, h, chunk, &bytes);
    if (h->count != count) {
        ps_err_set(PS_ERR_PROTOCOL,
                   "a %s of chunk %u with %" PRIu64 " elements; the plan has %" PRIu64,
                   ps_wire_kind_name(h->kind), h->chunk, h->count, count);
        return PS_FRAME_BAD;
    }
    if (frame_check_step_of(rules, h, chunk) != PS_FRAME_GOOD) return PS_FRAME_BAD;
    if (h->codec == PS_CODEC_SHM || h->codec == PS_CODEC_IDLE) return PS_FRAME_GOOD;
    if (h->codec != codec) return frame_bad("a codec that was not agreed on", h);
    if (v->payload_bytes != bytes) {
        ps_err_set(PS_ERR_PROTOCOL,
                   "a %s of chunk %u with %zu bytes of payload; %" PRIu64
                   " were expected",
                   ps_wire_kind_name(h->kind), h->chunk, v->payload_bytes, bytes);
        return PS_FRAME_BAD;
    }
    return PS_FRAME_GOOD;
}

static ps_frame_class frame_check_groups(const ps_frame_rules *rules,
                                         const ps_frame_view *v, const ps_wire_header *h)
{
    const uint64_t n = (uint64_t)rules->n_groups;
    if (h->rank != 0 || n == 0 || h->count != n ||
        v->payload_bytes != n * sizeof(ps_group_numbers))
        return frame_bad("numbers of other parameter groups than the job's", h);
    return PS_FRAME_GOOD;
}

/* All pieces but the last are as long as can be, so that a body is not cut finer. */
static ps_frame_class frame_check_piece(const ps_frame_rules *rules,
                                        const ps_frame_view *v, const ps_wire_header *h)
{
    const uint64_t left = h->rows.at < h->count ? h->count - h->rows.at : 0;
    const uint64_t wanted = left < PS_WIRE_PIECE_BYTES ? left : PS_WIRE_PIECE_BYTES;
    if (rules->n_tables == 0) return frame_bad("rows, but the job has no tables", h);
    if (h->rows.number > 0 && left > 0 && h->count <= PS_WIRE_BODY_BYTES &&
        h->rows.at % PS_WIRE_PIECE_BYTES == 0 && v->payload_bytes == wanted)
        return PS_FRAME_GOOD;
    ps_err_set(PS_ERR_PROTOCOL, "a %s with %zu bytes at %" PRIu64 " of %" PRIu64,
               ps_wire_kind_name(h->kind), v->payload_bytes, h->rows.at, h->count);
    return PS_FRAME_BAD;
}

static ps_frame_class check_chunk(const ps_frame_rules *rules, const ps_frame_view *v,
                                  const ps_wire_header *h)
{
    if (h->chunk >= rules->plan->n_chunks)
        return frame_bad("a chunk that the plan does not have", h);
    const ps_chunk *chunk = &rules->plan->chunks[h->chunk];
    if (chunk->shard != rules->shard) return frame_bad("a chunk of another shard", h);
    if (h->kind == PS_MSG_RESTORE && h->codec == PS_CODEC_SHM)
        return frame_bad("state in shared memory", h);
    if (!ps_wire_kind_has_payload(h->kind)) return PS_FRAME_GOOD;
    return check_payload(rules, v, h, chunk);
}

ps_frame_class ps_frame_check(const ps_frame_rules *rules, const ps_frame_view *v,
                              ps_wire_header *h)
{
    *h = (ps_wire_header){0};
    int64_t sender =
        ps_wire_id_rank(v->id, v->id_bytes, rules->secrets, rules->n_workers);
    if (sender < 0) {
        ps_err_set(PS_ERR_PROTOCOL, "a message from outside this job");
        return PS_FRAME_STRANGER;
    }
    ps_err err = v->n_frames < 1
                     ? ps_err_set(PS_ERR_PROTOCOL, "a message without a header")
                     : ps_wire_decode(v->header, v->header_bytes, h);
    if (err == PS_OK && h->nonce != rules->nonce)
        err = ps_err_set(PS_ERR_PROTOCOL, "a message of another job");
    if (err == PS_OK && h->rank != sender)
        err = ps_err_set(PS_ERR_PROTOCOL, "a message in the name of worker %u", h->rank);
    h->rank = (uint32_t)sender; // whatever the header says: an answer goes to the sender
    if (err != PS_OK) return PS_FRAME_BAD;
    if (h->epoch != rules->epoch) {
        ps_err_set(PS_ERR_PROTOCOL, "member epoch %u; the present one is %u", h->epoch,
                   rules->epoch);
        return PS_FRAME_STALE;
    }
    if (v->n_frames > 2) return frame_bad("too many frames", h);
    if (!ps_wire_from_worker(h->kind))
        return frame_bad("a kind that only shards send", h);
    const bool wanted = ps_wire_has_payload(h);
    if (wanted != (v->n_frames == 2))
        return frame_bad(wanted ? "no payload" : "a payload where none belongs", h);
    if (h->kind == PS_MSG_HELLO || h->kind == PS_MSG_BYE) return PS_FRAME_GOOD;
    if (h->kind == PS_MSG_GROUPS) return frame_check_groups(rules, v, h);
    if (ps_wire_is_rows(h->kind)) return frame_check_piece(rules, v, h);
    return check_chunk(rules, v, h);
}

bool ps_frame_is_readers(const ps_frame_rules *rules, const ps_frame_view *v)
{
    return rules->readers && ps_wire_id_is_readers(v->id, v->id_bytes, rules->readers);
}

/* A message that is whole, of a sender that is no worker. most: bytes of its body. */
static ps_err frame_check_whole(const ps_frame_rules *rules, const ps_frame_view *v,
                                bool (*is_theirs)(int kind), size_t most,
                                ps_wire_header *h)
{
    *h = (ps_wire_header){0};
    if (v->n_frames < 1) return ps_err_set(PS_ERR_PROTOCOL, "a message without a header");
    PS_TRY(ps_wire_decode(v->header, v->header_bytes, h));
    if (h->nonce != rules->nonce || h->epoch != rules->epoch)
        return ps_err_set(PS_ERR_PROTOCOL, "a message of another job");
    if (!is_theirs(h->kind))
        return ps_err_set(PS_ERR_PROTOCOL, "%s, which %s do not send",
                          ps_wire_kind_name(h->kind),
                          is_theirs == ps_wire_from_reader ? "readers" : "servers");
    if (v->n_frames != 1 + ps_wire_has_payload(h) || h->count != v->payload_bytes ||
        v->payload_bytes > most)
        return ps_err_set(PS_ERR_PROTOCOL, "a %s of %d frames, with %zu bytes",
                          ps_wire_kind_name(h->kind), v->n_frames, v->payload_bytes);
    if (rules->n_tables > 0) return PS_OK;
    return ps_err_set(PS_ERR_ARG, "the job has no embedding tables");
}

ps_err ps_frame_check_reader(const ps_frame_rules *rules, const ps_frame_view *v,
                             ps_wire_header *h)
{
    return frame_check_whole(rules, v, ps_wire_from_reader, PS_WIRE_ASKED_BYTES, h);
}

int64_t ps_frame_shard(const ps_frame_rules *rules, const ps_frame_view *v)
{
    return rules->twins ? ps_wire_id_shard(v->id, v->id_bytes, rules->twins) : -1;
}

ps_err ps_frame_check_twin(const ps_frame_rules *rules, const ps_frame_view *v,
                           ps_wire_header *h)
{
    return frame_check_whole(rules, v, ps_wire_from_server, PS_WIRE_TWIN_BYTES, h);
}
