/* Codes one block at a time; codec.c loops over the blocks of a vector. A block stays in
 * the first-level cache, so that feedback and adding cost no second pass through memory.
 */
#ifndef PS_CODEC_BLOCK_H
#define PS_CODEC_BLOCK_H

#include <stdint.h>

#include "cpu_level.h"
#include "tensor.h"

enum {
    PS_CODEC_MAX_BLOCK = 1024,        // elements
    PS_CODEC_SPAN = PS_GRADNORM_BLOCK // elements after which blocks start anew (codec.h)
};

/* Where an element's random numbers come from, and topk's share. nearest: int8 takes
 * none, and rounds to nearest. */
typedef struct ps_codec_how {
    double topk;
    uint32_t key; // of the vector
    bool nearest;
} ps_codec_how;

typedef struct ps_codec_block {
    uint64_t size; // elements of a whole block, at most PS_CODEC_MAX_BLOCK
    /* n elements, 1 .. size, in all of these. */
    uint64_t (*bytes)(uint64_t n, double topk);
    /* at: the block's first element in its tensor. */
    void (*encode)(uint64_t n, const float *v, const ps_codec_how *how, uint64_t at,
                   uint8_t *out);
    /* PROTOCOL for bytes that encode cannot have made; out is then undefined. */
    ps_err (*decode)(uint64_t n, const uint8_t *in, double topk, float *out);
    /* Decodes, multiplies by times (1 or -1) and adds to sum. NULL: the caller uses
     * decode and then adds all elements. */
    ps_err (*add)(uint64_t n, const uint8_t *in, double topk, float times, float *sum);
} ps_codec_block;

extern const ps_codec_block PS_AT_LEVEL(ps_codec_none_block),
    PS_AT_LEVEL(ps_codec_fp16_block), PS_AT_LEVEL(ps_codec_bf16_block),
    PS_AT_LEVEL(ps_codec_int8_block), PS_AT_LEVEL(ps_codec_int4_block),
    PS_AT_LEVEL(ps_codec_onebit_block), PS_AT_LEVEL(ps_codec_topk_block);

/* fp16, except that values above 65504 become infinite. */
extern const ps_codec_block PS_AT_LEVEL(ps_codec_fp16_overflow_block);

#endif
