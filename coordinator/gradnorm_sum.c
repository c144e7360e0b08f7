#include "gradnorm_sum.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

struct ps_gradnorm_part {
    uint64_t sender, n, blocks;
    uint64_t *words; // n first, n counts, then the sums: as on the wire, aligned
};

static const double *sums_of(const ps_gradnorm_part *p)
{
    return (const double *)(const void *)(p->words + 2 * p->n);
}

void ps_gradnorm_sum_fini(ps_gradnorm_sum *s)
{
    for (uint32_t i = 0; i < s->n_parts; i++)
        free(s->parts[i].words);
    free(s->parts);
    *s = (ps_gradnorm_sum){0};
}

size_t ps_gradnorm_part_bytes(uint32_t n, const uint64_t *counts)
{
    size_t words = 1 + 2 * (size_t)n;
    for (uint32_t i = 0; i < n; i++)
        words += counts[i];
    return words * sizeof(uint64_t);
}

void ps_gradnorm_part_write(void *out, uint32_t n, const uint64_t *first,
                            const uint64_t *counts, const double *sums)
{
    const uint64_t n64 = n;
    const size_t runs = (size_t)n * sizeof(uint64_t);
    char *at = out;
    memcpy(at, &n64, sizeof n64);
    at += sizeof n64;
    if (n == 0) return;
    memcpy(at, first, runs);
    memcpy(at + runs, counts, runs);
    at += 2 * runs;
    size_t blocks = ps_gradnorm_part_bytes(n, counts) / 8 - 1 - 2 * (size_t)n;
    if (blocks > 0) memcpy(at, sums, blocks * sizeof *sums);
}

static ps_err gradnorm_sum_misfit(void)
{
    return ps_err_set(PS_ERR_PROTOCOL,
                      "a shard's part of the gradient norm is malformed");
}

/* Checks a part's runs against its bytes and the number of blocks. */
static ps_err check_part(const ps_gradnorm_part *p, uint64_t words, uint64_t total_blocks,
                         uint64_t *blocks)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < p->n; i++) {
        uint64_t first = p->words[i], count = p->words[p->n + i];
        if (first > total_blocks || count > total_blocks - first)
            return gradnorm_sum_misfit();
        sum += count; // cannot wrap: n < 2^23 parts of at most 2^26
    }
    if (sum != words - 2 * p->n) return gradnorm_sum_misfit();
    *blocks = sum;
    return PS_OK;
}

static ps_err parse_part(ps_gradnorm_part *p, uint64_t total_blocks, const void *bytes,
                         size_t n_bytes)
{
    if (n_bytes < sizeof p->n || n_bytes % sizeof(uint64_t) != 0)
        return gradnorm_sum_misfit();
    uint64_t words = n_bytes / sizeof(uint64_t) - 1;
    memcpy(&p->n, bytes, sizeof p->n);
    if (p->n > words / 2) return gradnorm_sum_misfit();
    PS_TRY(PS_NEW(&p->words, words, "gradient norm"));
    memcpy(p->words, (const char *)bytes + sizeof p->n, words * sizeof *p->words);
    return check_part(p, words, total_blocks, &p->blocks);
}

static ps_gradnorm_part *gradnorm_sum_part_of(const ps_gradnorm_sum *s, uint64_t sender)
{
    for (uint32_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].sender == sender) return &s->parts[i];
    return NULL;
}

static ps_err append_part(ps_gradnorm_sum *s, const ps_gradnorm_part *p)
{
    ps_gradnorm_part *parts =
        realloc(s->parts, (s->n_parts + (size_t)1) * sizeof *s->parts);
    if (!parts) return ps_err_set(PS_ERR_NOMEM, "no memory for the gradient norm");
    s->parts = parts;
    s->parts[s->n_parts++] = *p;
    return PS_OK;
}

static ps_err store_part(ps_gradnorm_sum *s, const ps_gradnorm_part *p)
{
    ps_gradnorm_part *old = gradnorm_sum_part_of(s, p->sender);
    uint64_t others = s->blocks_in - (old ? old->blocks : 0);
    if (p->blocks > s->total_blocks - others)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "the shards' parts of the gradient norm have more than %llu "
                          "blocks together",
                          (unsigned long long)s->total_blocks);
    if (old) {
        free(old->words);
        *old = *p;
    } else {
        PS_TRY(append_part(s, p));
    }
    s->blocks_in = others + p->blocks;
    return PS_OK;
}

ps_err ps_gradnorm_sum_add(ps_gradnorm_sum *s, uint64_t sender, uint64_t n_shards,
                           uint64_t total_blocks, const void *part, size_t bytes)
{
    if (n_shards == 0 || n_shards > PS_GRADNORM_SHARDS_MAX ||
        total_blocks > PS_GRADNORM_BLOCKS_MAX)
        return gradnorm_sum_misfit();
    if (s->n_parts > 0 && (s->n_shards != n_shards || s->total_blocks != total_blocks))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "shards differ in the number of shards or blocks of a gradient "
                          "norm");
    if (s->n_parts == s->n_shards && s->n_parts > 0 && !gradnorm_sum_part_of(s, sender))
        return ps_err_set(PS_ERR_PROTOCOL, "a gradient norm of more than %llu shards",
                          (unsigned long long)n_shards);
    ps_gradnorm_part p = {.sender = sender};
    ps_err err = parse_part(&p, total_blocks, part, bytes);
    if (err == PS_OK) {
        s->n_shards = n_shards;
        s->total_blocks = total_blocks;
        err = store_part(s, &p);
    }
    if (err != PS_OK) free(p.words);
    return err;
}

bool ps_gradnorm_sum_complete(const ps_gradnorm_sum *s)
{
    return s->n_shards > 0 && s->n_parts == s->n_shards;
}

/* Puts a part's sums in their places; false when a place is taken already. */
static bool place_part(const ps_gradnorm_part *p, double *sums, bool *taken)
{
    const double *from = sums_of(p);
    for (uint64_t i = 0; i < p->n; i++) {
        uint64_t first = p->words[i], count = p->words[p->n + i];
        for (uint64_t b = first; b < first + count; b++) {
            if (taken[b]) return false;
            taken[b] = true;
            sums[b] = *from++;
        }
    }
    return true;
}

ps_err ps_gradnorm_sum_total(const ps_gradnorm_sum *s, double *norm, double **out)
{
    if (out) *out = NULL;
    // There are as many places as sums: when none is taken twice, all are filled.
    if (s->blocks_in != s->total_blocks)
        return ps_err_set(
            PS_ERR_PROTOCOL, "the shards gave %llu of %llu blocks of the gradient norm",
            (unsigned long long)s->blocks_in, (unsigned long long)s->total_blocks);
    double *sums = NULL;
    bool *taken = NULL, fits = true;
    ps_err err;
    PS_TRY_GOTO(PS_NEW(&sums, s->total_blocks, "norm"), err, out);
    PS_TRY_GOTO(PS_NEW(&taken, s->total_blocks, "norm"), err, out);
    for (uint32_t i = 0; i < s->n_parts && fits; i++)
        fits = place_part(&s->parts[i], sums, taken);
    if (!fits)
        err = ps_err_set(PS_ERR_PROTOCOL,
                         "two shards gave the same block of the gradient norm");
    double sum = 0;
    for (uint64_t b = 0; b < s->total_blocks; b++)
        sum += sums[b];
    *norm = sqrt(sum);
    if (err == PS_OK && out) {
        *out = sums;
        sums = NULL;
    }
out:
    free(sums);
    free(taken);
    return err;
}
