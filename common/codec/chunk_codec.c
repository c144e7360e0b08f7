#include "chunk_codec.h"

#include <string.h>

#include "absent.h"
#include "procstat.h"
#include "schedule.h"

/* One piece of a chunk's payload. */
typedef struct piece {
    uint64_t offset, count; // elements, from the chunk's start
    ps_codec codec;
    ps_codec_draw draw;
    uint64_t bytes;
} piece;

/* The part of tensor t that lies in the chunk, drawn by a key of the whole payload. */
static piece chunk_piece_of(const ps_chunk_codec *c, const ps_chunk *chunk,
                            ps_codec codec, int t, uint64_t key)
{
    const ps_tensor *tensor = &c->table->tensors[t];
    uint64_t begin, end;
    ps_chunk_overlap(chunk, tensor, &begin, &end);
    bool small = tensor->count * sizeof(float) < c->min_bytes;
    piece p = {.offset = tensor->offset + begin - chunk->offset,
               .count = end > begin ? end - begin : 0,
               .codec = small ? PS_CODEC_NONE : codec,
               .draw = {.key = key + (uint64_t)t, .first = begin}};
    p.bytes = ps_codec_bytes(p.codec, p.count, c->topk);
    return p;
}

/* Of 64 steps by onebit, 8 and 8 instead of 32 and 16 cost no accuracy that eight paired
 * seeds could show; with topk they did (docs/codecs.md). int4 loses little. */
static uint64_t auto_phase(const ps_chunk_codec *c, uint64_t most)
{
    if (c->codec == PS_CODEC_INT4) return 0;
    const bool shrinks = c->codec == PS_CODEC_ONEBIT && c->total_steps > 0;
    return shrinks && c->total_steps / 8 < most ? c->total_steps / 8 : most;
}

void ps_chunk_codec_init(ps_chunk_codec *c, const ps_config *cfg,
                         const ps_tensor_table *table)
{
    *c = (ps_chunk_codec){.codec = cfg->exchange.codec,
                          .topk = cfg->exchange.topk,
                          .min_bytes = (uint64_t)cfg->exchange.codec_min,
                          .warmup = (uint64_t)cfg->exchange.codec_warmup,
                          .cooldown = (uint64_t)cfg->exchange.codec_cooldown,
                          .table = table};
}

ps_chunk_size ps_chunk_size_wanted(const ps_config *cfg, bool one_host)
{
    const uint64_t many = 1 << 20;
    const uint64_t bytes = ps_codec_bytes(cfg->exchange.codec, many, cfg->exchange.topk);
    const int64_t processes = cfg->job.most_workers + cfg->job.servers;
    return (ps_chunk_size){.bytes = (uint64_t)cfg->exchange.chunk,
                           .one_host = one_host,
                           .crowded = one_host && processes > ps_machine_cores(),
                           .travels = (float)bytes / (float)(many * sizeof(float)),
                           .fragments = (uint32_t)cfg->sync.fragments};
}

void ps_chunk_codec_end(ps_chunk_codec *c, uint64_t total_steps)
{
    c->total_steps = total_steps == PS_STEPS_UNKNOWN ? 0 : total_steps;
    if (c->warmup == PS_CHUNK_CODEC_AUTO) c->warmup = auto_phase(c, 32);
    if (c->cooldown == PS_CHUNK_CODEC_AUTO) c->cooldown = auto_phase(c, 16);
}

bool ps_chunk_codec_keeps(const ps_chunk_codec *c, uint64_t step)
{
    return ps_codec_feeds_back(c->codec) && step >= c->warmup;
}

static bool in_cooldown(const ps_chunk_codec *c, uint64_t step)
{
    return step < c->total_steps && c->total_steps - step <= c->cooldown;
}

static ps_codec codec_in_step(const ps_chunk_codec *c, ps_coded what, uint64_t step)
{
    if (!ps_codec_feeds_back(c->codec)) return c->codec;
    if (step < c->warmup || in_cooldown(c, step)) return PS_CODEC_INT8;
    const bool topk = c->codec == PS_CODEC_TOPK;
    return topk && what == PS_CODED_CHANGE ? PS_CODEC_ONEBIT : c->codec;
}

ps_codec ps_chunk_codec_of(const ps_chunk_codec *c, const ps_chunk *chunk, ps_coded what,
                           uint64_t step)
{
    const ps_codec codec = codec_in_step(c, what, step);
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++)
        if (chunk_piece_of(c, chunk, codec, t, 0).codec != PS_CODEC_NONE) return codec;
    return PS_CODEC_NONE;
}

static uint64_t pieces_bytes(const ps_chunk_codec *c, const ps_chunk *chunk,
                             ps_codec codec)
{
    uint64_t bytes = 0;
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++)
        bytes += chunk_piece_of(c, chunk, codec, t, 0).bytes;
    return bytes;
}

uint64_t ps_chunk_codec_bytes(const ps_chunk_codec *c, const ps_chunk *chunk,
                              ps_codec codec)
{
    if (codec == PS_CODEC_NONE) return chunk->count * sizeof(float);
    const int n_tensors = chunk->last_tensor - chunk->first_tensor + 1;
    const uint64_t marks = c->table->optional ? (uint64_t)n_tensors : 0;
    return pieces_bytes(c, chunk, codec) + marks;
}

/* The marks of a payload, by tensor of the table; NULL: it has none. */
static uint8_t *marks_of(const ps_chunk_codec *c, const ps_chunk *chunk, ps_codec codec,
                         const void *payload)
{
    if (!c->table->optional) return NULL;
    uint8_t *bytes = (uint8_t *)(uintptr_t)payload;
    return bytes + pieces_bytes(c, chunk, codec) - chunk->first_tensor;
}

uint64_t ps_chunk_codec_most_bytes(const ps_chunk_codec *c, const ps_chunk *chunk,
                                   ps_coded what)
{
    const uint64_t steps[] = {0, c->warmup, c->total_steps - 1}; // one per phase
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const ps_codec codec = ps_chunk_codec_of(c, chunk, what, steps[i]);
        const uint64_t bytes = ps_chunk_codec_bytes(c, chunk, codec);
        most = bytes > most ? bytes : most;
    }
    return most;
}

void ps_chunk_codec_step_bytes(const ps_chunk_codec *c, const ps_plan *plan,
                               uint32_t shard, uint64_t *total, uint64_t *largest)
{
    *total = *largest = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        uint64_t bytes =
            ps_chunk_codec_most_bytes(c, &plan->chunks[i], PS_CODED_GRADIENT);
        if (bytes > *largest) *largest = bytes;
        if (plan->chunks[i].shard == shard) *total += bytes;
    }
}

void ps_chunk_codec_encode(const ps_chunk_codec *c, const ps_chunk *chunk, ps_codec codec,
                           const float *values, float *residual, uint64_t key, void *out)
{
    if (codec == PS_CODEC_NONE) {
        ps_codec_encode(codec, 0, chunk->count, values, NULL, (ps_codec_draw){0}, out);
        return;
    }
    uint8_t *at = out, *marks = marks_of(c, chunk, codec, out);
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        const piece p = chunk_piece_of(c, chunk, codec, t, key);
        const float *in = values + p.offset;
        float *kept = residual && p.codec != PS_CODEC_NONE ? residual + p.offset : NULL;
        const bool lacks = marks && p.count > 0 && ps_absent_at(in);
        if (marks) marks[t] = !lacks;
        if (lacks)
            memset(at, 0, p.bytes); // what was kept back waits on
        else if (c->overflow && p.codec == PS_CODEC_FP16)
            ps_codec_encode_fp16_overflow(p.count, in, at);
        else
            ps_codec_encode(p.codec, c->topk, p.count, in, kept, p.draw, at);
        at += p.bytes;
    }
}

void ps_chunk_codec_encode_change(const ps_chunk_codec *c, const ps_chunk *chunk,
                                  ps_codec codec, const float *values, float *known,
                                  uint64_t key, void *out)
{
    uint8_t *to = out, *marks = marks_of(c, chunk, codec, out);
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        const piece p = chunk_piece_of(c, chunk, codec, t, key);
        const float *in = values + p.offset;
        if (marks) marks[t] = 1;
        if (p.codec == PS_CODEC_NONE) {
            memcpy(to, in, p.bytes);
            memcpy(known + p.offset, in, p.bytes);
        } else {
            ps_codec_encode_change(p.codec, c->topk, p.count, in, known + p.offset,
                                   p.draw, to);
        }
        to += p.bytes;
    }
}

static ps_err chunk_check_bytes(const ps_chunk_codec *c, const ps_chunk *chunk,
                                ps_codec codec, uint64_t bytes)
{
    const uint64_t wanted = ps_chunk_codec_bytes(c, chunk, codec);
    if (bytes == wanted) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "%llu bytes for a chunk that takes %llu",
                      (unsigned long long)bytes, (unsigned long long)wanted);
}

/* *lacks: the piece is of no gradient. */
static ps_err read_mark(const uint8_t *marks, int tensor, bool *lacks)
{
    *lacks = marks && marks[tensor] == 0;
    if (!marks || marks[tensor] <= 1) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "a piece of a chunk with the mark %u",
                      marks[tensor]);
}

ps_err ps_chunk_codec_decode(const ps_chunk_codec *c, const ps_chunk *chunk,
                             ps_codec codec, const void *payload, uint64_t bytes,
                             float *out)
{
    PS_TRY(chunk_check_bytes(c, chunk, codec, bytes));
    if (codec == PS_CODEC_NONE)
        return ps_codec_decode(codec, 0, chunk->count, payload, bytes, out);
    const uint8_t *at = payload, *marks = marks_of(c, chunk, codec, payload);
    uint64_t filled = 0;
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        const piece p = chunk_piece_of(c, chunk, codec, t, 0);
        bool lacks;
        if (p.count == 0) continue;
        PS_TRY(read_mark(marks, t, &lacks));
        memset(out + filled, 0, (p.offset - filled) * sizeof *out);
        if (lacks)
            ps_absent_fill(out + p.offset, p.count);
        else
            PS_TRY(
                ps_codec_decode(p.codec, c->topk, p.count, at, p.bytes, out + p.offset));
        if (marks && !lacks) ps_absent_not(out + p.offset);
        filled = p.offset + p.count;
        at += p.bytes;
    }
    memset(out + filled, 0, (chunk->count - filled) * sizeof *out);
    return PS_OK;
}

/* Adds the pieces to `to`. Uncoded pieces overwrite it instead where they replace. */
static ps_err add_pieces(const ps_chunk_codec *c, const ps_chunk *chunk, ps_codec codec,
                         const uint8_t *at, float *to, bool replace)
{
    const uint8_t *marks = marks_of(c, chunk, codec, at);
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        const piece p = chunk_piece_of(c, chunk, codec, t, 0);
        bool lacks;
        PS_TRY(read_mark(marks, t, &lacks));
        if (replace && p.codec == PS_CODEC_NONE)
            memcpy(to + p.offset, at, p.bytes);
        else if (!lacks)
            PS_TRY(ps_codec_decode_add(p.codec, c->topk, p.count, at, p.bytes,
                                       to + p.offset));
        if (marks && p.count > 0 && !lacks && !replace) ps_absent_not(to + p.offset);
        at += p.bytes;
    }
    return PS_OK;
}

ps_err ps_chunk_codec_decode_add(const ps_chunk_codec *c, const ps_chunk *chunk,
                                 ps_codec codec, const void *payload, uint64_t bytes,
                                 float *sum)
{
    PS_TRY(chunk_check_bytes(c, chunk, codec, bytes));
    if (codec == PS_CODEC_NONE)
        return ps_codec_decode_add(codec, 0, chunk->count, payload, bytes, sum);
    return add_pieces(c, chunk, codec, payload, sum, false);
}

ps_err ps_chunk_codec_decode_change(const ps_chunk_codec *c, const ps_chunk *chunk,
                                    ps_codec codec, const void *payload, uint64_t bytes,
                                    float *known)
{
    PS_TRY(chunk_check_bytes(c, chunk, codec, bytes));
    return add_pieces(c, chunk, codec, payload, known, true);
}
