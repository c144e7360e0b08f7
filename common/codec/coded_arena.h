/* The gradients of a step as a device has encoded them (device_codes.h): the pieces of
 * all tensors, one after another, as chunk_codec.h makes them. So a chunk's payload is a
 * range of the arena, and nobody copies it. */
#ifndef PS_CODED_ARENA_H
#define PS_CODED_ARENA_H

#include "chunk_codec.h"
#include "mem.h"

typedef struct ps_coded_arena {
    ps_chunk_codec codec;
    uint64_t *at; // (n_tensors + 1) where a tensor's bytes begin
    ps_shared_mem memory;
    uint64_t key; // ps_codec_draw_key of this rank and the step that has begun
} ps_coded_arena;

/* Whether the codec is the same in all steps and keeps nothing back: fp16, bf16 and int8,
 * of tensors that never lack a gradient. */
bool ps_coded_arena_takes(const ps_chunk_codec *codec);

/* Copies codec, which it takes. a is safe for fini after a failure. */
ps_err ps_coded_arena_init(ps_coded_arena *a, const ps_chunk_codec *codec);
void ps_coded_arena_fini(ps_coded_arena *a);

/* NONE: the tensor is small, and travels as float32. */
ps_codec ps_coded_arena_codec_of(const ps_coded_arena *a, int tensor);

/* The bytes from an element of a tensor on, which begins a block or a chunk. */
uint8_t *ps_coded_arena_at(const ps_coded_arena *a, int tensor, uint64_t element);

/* The payload of a chunk whose codec is not NONE. */
const uint8_t *ps_coded_arena_payload(const ps_coded_arena *a, const ps_chunk *chunk);

#endif
