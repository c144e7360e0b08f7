/* The kernel that encodes gradients (cuda_kernels.h, common/codec/codec.h). */
#ifndef PS_CUDA_CODEC_KERNELS_H
#define PS_CUDA_CODEC_KERNELS_H

#include "codec_arith.h"
#include "config_words.h"
#include "cuda_team.h"

/* A part of a tensor: a block of int8, or as many elements of another codec. */
typedef struct ps_code_part {
    uint64_t out;      // byte of the coded arena
    uint32_t begin, n; // elements of the gradient arena
    uint32_t first;    // its first element in the tensor
    uint32_t tensor, codec;
} ps_code_part;

/* Rows: parts. */
typedef struct ps_k_code {
    const float *grads;
    const ps_code_part *parts;
    uint8_t *out;
    uint64_t key;     // ps_coded_arena's
    uint32_t largest; // of fp16 (ps_fp16_held)
    uint32_t lanes;
} ps_k_code;

PS_ARITH uint32_t ps_join_most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
PS_TEAM_JOIN(most, uint32_t, ps_join_most)

/* Byte by byte: a payload's numbers begin anywhere. */
PS_ARITH void ps_code_put(uint8_t *out, uint32_t value, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

PS_TEAM void ps_code_int8(const ps_code_part *p, const float *v, uint32_t key,
                          ps_team team, uint8_t *out)
{
    uint32_t parts[PS_TEAM_KEPT];
    PS_TEAM_EACH (team, l) {
        uint32_t most = 0;
        for (uint32_t i = l; i < p->n; i += team.lanes)
            most = ps_join_most(most, ps_float_bits(v[i]) & 0x7FFFFFFFu);
        parts[PS_TEAM_SLOT(l)] = most;
    }
    const uint32_t most = ps_team_most(team, parts), half = p->n / 2;
    const float scale = ps_codec_int8_scale(most);
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    const bool finite = most < 0x7F800000u;
    PS_TEAM_EACH (team, l) {
        if (l == 0) ps_code_put(out, ps_float_bits(scale), 4);
        for (uint32_t i = l; i < p->n - half; i += team.lanes) {
            const uint32_t bits = ps_codec_mix((p->first + i) ^ key);
            // two elements, half a block apart, share a number
            if (i < half)
                out[4 + i] =
                    (uint8_t)(finite ? ps_codec_int8_round(v[i], inverse, bits & 0xFFFFu)
                                     : 1);
            const uint32_t j = i < half ? half + i : p->n - 1;
            out[4 + j] =
                (uint8_t)(finite ? ps_codec_int8_round(v[j], inverse, bits >> 16) : 1);
        }
    }
}

PS_TEAM void ps_k_code_row(const ps_k_code *k, uint32_t row, ps_team team)
{
    const ps_code_part p = k->parts[row];
    const float *v = k->grads + p.begin;
    uint8_t *out = k->out + p.out;
    if (p.codec == PS_CODEC_INT8) {
        ps_code_int8(&p, v, ps_codec_vector_key(k->key + p.tensor), team, out);
        return;
    }
    PS_TEAM_EACH (team, l)
        for (uint32_t i = l; i < p.n; i += team.lanes) {
            if (p.codec == PS_CODEC_NONE)
                ps_code_put(out + (size_t)4 * i, ps_float_bits(v[i]), 4);
            else
                ps_code_put(out + (size_t)2 * i,
                            p.codec == PS_CODEC_BF16 ? ps_bf16_of(v[i])
                                                     : ps_fp16_held(v[i], k->largest),
                            2);
        }
}

#endif
