#include "plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "mem.h"
#include "procstat.h"

enum {
    BYTES_PER_BLOCK = PS_GRADNORM_BLOCK * (int)sizeof(float),
    MIN_AUTO_BYTES = 48 << 10,
    MAX_AUTO_BYTES = 1 << 20,
    ONE_HOST_BYTES = 512 << 10,
    ONE_HOST_LEAST = 256 << 10,
    COARSE_AUTO_BYTES = 96 << 10,
    A_MESSAGE_PAYS = 16 << 10, // elements that cost what a message does, where crowded
    CHUNKS_PER_SHARD = 4,      // at least, so that a shard's last chunk is a small part
    MIN_TARGET = PS_TENSOR_ALIGN,
    WHOLE_WEIGHT = 1 << 20, // of all shards; whole numbers, so that all processes agree
};

/* How the parameters are shared out over the shards. */
typedef struct spread {
    uint32_t n;
    const uint32_t *weights; // of each shard; NULL: equal
    const ps_fragments *fragments;
} spread;

/* The place nearest to the element at which a fragment may begin; the arena's end if that
 * is nearer than any. */
static uint64_t fragment_near(const ps_tensor_table *table, uint64_t element)
{
    int i = table->n_tensors - 1;
    while (table->tensors[i].offset > element)
        i--;
    const ps_tensor *t = &table->tensors[i];
    const uint64_t half = PS_GRADNORM_BLOCK / 2;
    const uint64_t blocks = (element - t->offset + half) / PS_GRADNORM_BLOCK;
    const uint64_t in_tensor = blocks * PS_GRADNORM_BLOCK;
    if (in_tensor < t->count) return t->offset + in_tensor;
    return i < table->n_tensors - 1 ? t[1].offset : table->arena_count;
}

ps_err ps_fragments_init(ps_fragments *f, const ps_tensor_table *table, uint32_t n)
{
    *f = (ps_fragments){.n = n, .count = table->arena_count};
    uint64_t end = f->count;
    for (uint32_t i = 0; i < n; i++) {
        f->begins[i] = fragment_near(table, f->count / n * (n - 1 - i));
        if (f->begins[i] >= end)
            return ps_err_set(PS_ERR_CONFIG,
                              "sync.fragments: the model's %" PRIu64
                              " parameters cannot be cut into %u fragments, as tensors "
                              "are cut at every %d parameters only: take fewer",
                              table->n_params, n, PS_GRADNORM_BLOCK);
        end = f->begins[i];
    }
    return PS_OK;
}

static uint64_t weight_of(const spread *s, uint32_t shard)
{
    return s->weights ? s->weights[shard] : 1;
}

static uint64_t total_weight(const spread *s)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < s->n; i++)
        total += weight_of(s, i);
    return total;
}

/* The number of equal shards that would each hold what the smallest one holds. */
static uint32_t equal_shards(const spread *s)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < s->n; i++)
        if (weight_of(s, i) < least) least = weight_of(s, i);
    return (uint32_t)(total_weight(s) / least);
}

static double travels_of(ps_chunk_size size)
{
    return size.travels > 0 ? (double)size.travels : 1;
}

bool ps_chunk_size_is_coarse(ps_chunk_size size)
{
    return travels_of(size) < 0.125;
}

/* Filling and draining the pipe costs the time of some chunks, and each chunk costs a
 * message: their sum is least at a size that grows with the square root of what travels.
 * The factor and the limits are measured (bench/results/2026-11-22-chunk-sizes.json). */
static double network_bytes(double travelling, bool coarse)
{
    const double least = coarse ? COARSE_AUTO_BYTES : MIN_AUTO_BYTES;
    const double wanted = 9.8 * sqrt(travelling);
    return fmax(least, fmin(wanted, MAX_AUTO_BYTES));
}

uint64_t ps_plan_auto_chunk_bytes(uint64_t bytes, uint32_t n_shards, ps_chunk_size size)
{
    const double travels = travels_of(size);
    const bool coarse = ps_chunk_size_is_coarse(size);
    const double of_shard = (double)bytes / (n_shards ? n_shards : 1);
    double wanted, most = coarse ? of_shard : of_shard / CHUNKS_PER_SHARD;
    if (size.one_host) {
        // Nothing but the processor limits an exchange: each chunk costs a message.
        wanted = size.crowded ? MAX_AUTO_BYTES : ONE_HOST_BYTES;
        most = size.crowded ? of_shard : fmax(most, fmin(of_shard, ONE_HOST_LEAST));
    } else {
        wanted = network_bytes((double)bytes * travels, coarse) / travels;
    }
    uint64_t blocks = (uint64_t)fmin(wanted, most) / BYTES_PER_BLOCK;
    if (size.crowded && most < wanted) // else the end of a shard is a chunk of its own
        blocks = (uint64_t)ceil(most / BYTES_PER_BLOCK);
    return (blocks ? blocks : 1) * BYTES_PER_BLOCK;
}

/* Chunks are cut from the arena's end to its start. */
typedef struct cutter {
    const ps_tensor_table *table;
    const ps_fragments *fragments;
    uint32_t fragment; // in which the open range ends
    ps_chunk *chunks;  // NULL: they are only counted
    uint64_t n;
    uint64_t target; // elements of a chunk: from here on a tensor is cut
    uint64_t blocks; // the same in whole blocks, at least one
    uint64_t end;    // everything from here on is in chunks already
} cutter;

static void add_chunk(cutter *c, uint64_t begin, int first, int last)
{
    if (c->chunks)
        c->chunks[c->n] = (ps_chunk){.offset = begin,
                                     .count = c->end - begin,
                                     .first_tensor = first,
                                     .last_tensor = last,
                                     .fragment = c->fragment};
    c->n++;
    c->end = begin;
    if (begin == c->fragments->begins[c->fragment]) c->fragment++;
}

/* The open range [begin, end) becomes a chunk, or one of each fragment that it touches;
 * begin lies in tensor first. */
static void cut_at(cutter *c, uint64_t begin, int first, int last)
{
    const ps_tensor *tensors = c->table->tensors;
    while (c->fragments->begins[c->fragment] > begin) {
        const uint64_t border = c->fragments->begins[c->fragment];
        int tensor = last;
        while (tensors[tensor].offset > border)
            tensor--;
        add_chunk(c, border, tensor, last);
        last = tensors[tensor].offset == border ? tensor - 1 : tensor;
    }
    add_chunk(c, begin, first, last);
}

/* Cuts the large tensor and the small open ones after it, up to `last`, into parts of
 * whole blocks that differ by one block at most. So a bias travels with the end of its
 * weight. */
static void cut_large(cutter *c, int tensor, int last)
{
    const ps_tensor *t = &c->table->tensors[tensor];
    uint64_t total = (c->end - t->offset + PS_GRADNORM_BLOCK - 1) / PS_GRADNORM_BLOCK;
    uint64_t parts = (total + c->blocks - 1) / c->blocks;
    for (uint64_t k = parts; k-- > 0;) {
        uint64_t begin = t->offset + k * total / parts * PS_GRADNORM_BLOCK;
        if (begin >= t->offset + t->count) continue; // no cut after the tensor's end
        cut_at(c, begin, tensor, last);
        last = tensor;
    }
}

static void cut_into(cutter *c)
{
    c->end = c->table->arena_count;
    int last = c->table->n_tensors - 1; // the last tensor of the open range
    for (int i = last; i >= 0; i--) {
        const ps_tensor *t = &c->table->tensors[i];
        uint64_t open_begin = i < last ? t[1].offset : c->end;
        uint64_t open = c->end - open_begin, size = open_begin - t->offset;
        bool large = size > c->target && size > PS_GRADNORM_BLOCK;
        const bool others = open && t->owner != t[1].owner;
        if (others ||
            (open && (large ? open > c->target / 2 : open + size > c->target))) {
            cut_at(c, open_begin, i + 1, last);
            last = i;
        }
        if (large) {
            cut_large(c, i, last);
            last = i - 1;
        }
    }
    if (last >= 0) cut_at(c, 0, 0, last);
}

/* chunks NULL: they are only counted. */
static uint64_t cut_all(const ps_tensor_table *table, const ps_fragments *fragments,
                        uint64_t target, ps_chunk *chunks)
{
    cutter c = {.table = table,
                .fragments = fragments,
                .chunks = chunks,
                .target = target,
                .blocks = target < PS_GRADNORM_BLOCK ? 1 : target / PS_GRADNORM_BLOCK};
    cut_into(&c);
    return c.n;
}

/* The target, halved until every shard can have a chunk. */
static ps_err find_target(const ps_tensor_table *table, uint64_t chunk_bytes,
                          const spread *to, uint64_t *target, uint64_t *n)
{
    const uint32_t n_shards = to->n;
    uint64_t blocks = chunk_bytes / BYTES_PER_BLOCK;
    *target = (blocks ? blocks : 1) * PS_GRADNORM_BLOCK;
    *n = cut_all(table, to->fragments, *target, NULL);
    while (MIN_TARGET < *target && *n < n_shards) {
        *target /= 2;
        *n = cut_all(table, to->fragments, *target, NULL);
    }
    if (*n < n_shards)
        return ps_err_set(PS_ERR_CONFIG,
                          "the model's %" PRIu64 " parameters make at most %" PRIu64
                          " chunks, for %u shards: start fewer servers or lower "
                          "server.shards",
                          table->n_params, *n, n_shards);
    if (*n > UINT32_MAX / 2)
        return ps_err_set(PS_ERR_CONFIG,
                          "exchange.chunk: %" PRIu64
                          " chunks are too many; larger chunks are fewer",
                          *n);
    return PS_OK;
}

/* Fragment by fragment. */
static int by_size(const void *a, const void *b)
{
    const ps_chunk *x = *(const ps_chunk *const *)a, *y = *(const ps_chunk *const *)b;
    if (x->fragment != y->fragment) return x->fragment < y->fragment ? -1 : 1;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return x < y ? -1 : x > y; // qsort is not stable, and processes must agree
}

/* Whether shard a has fewer elements for its weight than b once each has `more`. */
static bool plan_emptier(const spread *to, const uint64_t *counts, uint32_t a, uint32_t b,
                         uint64_t more)
{
    return (counts[a] + more) * weight_of(to, b) < (counts[b] + more) * weight_of(to, a);
}

/* The shard that has the fewest elements for its weight once it has `more` of them: of
 * the fragment, and among equals of all. */
static uint32_t plan_emptiest(const ps_plan *plan, const spread *to,
                              const uint64_t *of_fragment, uint64_t more)
{
    uint32_t best = 0;
    for (uint32_t s = 1; s < plan->n_shards; s++)
        if (plan_emptier(to, of_fragment, s, best, more) ||
            (!plan_emptier(to, of_fragment, best, s, more) &&
             plan_emptier(to, plan->shard_counts, s, best, more)))
            best = s;
    return best;
}

static void move_chunk(ps_plan *plan, ps_chunk *chunk, uint32_t shard)
{
    plan->shard_counts[chunk->shard] -= chunk->count;
    plan->shard_counts[shard] += chunk->count;
    chunk->shard = shard;
}

/* A shard whose share is smaller than any chunk gets the smallest one of a shard that has
 * several, of the last fragment that has one. order: all chunks, by_size. */
static void fill_empty_shards(ps_plan *plan, ps_chunk *const *order)
{
    for (uint32_t s = 0; s < plan->n_shards; s++)
        for (uint32_t i = plan->n_chunks; i-- > 0 && plan->shard_counts[s] == 0;)
            if (plan->shard_counts[order[i]->shard] > order[i]->count)
                move_chunk(plan, order[i], s);
}

/* of_fragment: scratch (n_shards), zeroed. */
static void place_in_order(ps_plan *plan, const spread *to, ps_chunk *const *order,
                           uint64_t *of_fragment)
{
    uint32_t fragment = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        ps_chunk *c = order[i];
        if (c->fragment != fragment) memset(of_fragment, 0, to->n * sizeof *of_fragment);
        fragment = c->fragment;
        c->shard = plan_emptiest(plan, to, of_fragment, c->count);
        of_fragment[c->shard] += c->count;
        plan->shard_counts[c->shard] += c->count;
        if (c->count > plan->max_chunk_count) plan->max_chunk_count = c->count;
    }
}

static ps_err plan_place(ps_plan *plan, const spread *to)
{
    ps_chunk **order = NULL;
    uint64_t *of_fragment = NULL;
    ps_err err;
    PS_TRY_GOTO(PS_NEW(&order, plan->n_chunks, "plan"), err, out);
    PS_TRY_GOTO(PS_NEW(&of_fragment, to->n, "plan"), err, out);
    for (uint32_t i = 0; i < plan->n_chunks; i++)
        order[i] = &plan->chunks[i];
    qsort(order, plan->n_chunks, sizeof *order, by_size);
    place_in_order(plan, to, order, of_fragment);
    fill_empty_shards(plan, order);
out:
    free(of_fragment);
    free(order);
    return err;
}

static void hash_tensors(ps_hash *h, const ps_tensor *tensors, int n)
{
    ps_hash_u64(h, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        ps_hash_string(h, tensors[i].name);
        ps_hash_u64(h, (uint64_t)tensors[i].dims.n);
        for (int k = 0; k < tensors[i].dims.n; k++)
            ps_hash_u64(h, (uint64_t)tensors[i].dims.d[k]);
        ps_hash_u64(h, tensors[i].offset);
    }
}

static uint64_t hash_plan(const ps_plan *plan, const ps_tensor_table *table)
{
    ps_hash h;
    ps_hash_init(&h);
    hash_tensors(&h, table->tensors, table->n_tensors);
    hash_tensors(&h, table->buffers, table->n_buffers);
    ps_hash_u64(&h, plan->size.one_host); // credits follow from these (credit.h)
    ps_hash_u64(&h, plan->size.crowded);
    ps_hash_u64(&h, plan->n_shards);
    ps_hash_u64(&h, plan->n_chunks);
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        ps_hash_u64(&h, plan->chunks[i].offset);
        ps_hash_u64(&h, plan->chunks[i].count);
        ps_hash_u64(&h, plan->chunks[i].shard);
    }
    return ps_hash_value(&h);
}

/* The whole plan except its hash. */
static ps_err plan_make(ps_plan *plan, const ps_tensor_table *table, uint64_t chunk_bytes,
                        const spread *to)
{
    uint64_t target = 0, n = 0;
    *plan = (ps_plan){.n_shards = to->n, .fragments = *to->fragments};
    PS_TRY(find_target(table, chunk_bytes, to, &target, &n));
    PS_TRY(PS_NEW(&plan->chunks, n, "plan"));
    PS_TRY(PS_NEW(&plan->shard_counts, to->n, "plan"));
    plan->n_chunks = (uint32_t)cut_all(table, to->fragments, target, plan->chunks);
    return plan_place(plan, to);
}

/* What all shards together would have if each were as full as the fullest one. */
static double as_full_as_fullest(const ps_plan *plan, const spread *to)
{
    double most = 0;
    for (uint32_t s = 0; s < plan->n_shards; s++)
        most = fmax(most, (double)plan->shard_counts[s] / (double)weight_of(to, s));
    return most * (double)total_weight(to);
}

/* Takes chunks of that many blocks instead when the fullest shard then has less. */
static ps_err try_blocks(ps_plan *plan, const ps_tensor_table *table, const spread *to,
                         uint64_t blocks)
{
    ps_plan other;
    ps_err err = plan_make(&other, table, blocks * BYTES_PER_BLOCK, to);
    if (err == PS_OK && as_full_as_fullest(&other, to) < as_full_as_fullest(plan, to)) {
        ps_plan swap = *plan;
        *plan = other;
        other = swap;
    }
    ps_plan_fini(&other);
    return err;
}

/* Equal chunks whose number is not a multiple of the number of shards leave some shards
 * with one more, and the step waits for those. So smaller sizes are tried: the first that
 * balances the shards within 3% is taken, else the best one. Below half the size,
 * messages cost more than balance gains; where a host is crowded, they do for any few
 * bytes, of 30% at most. */
static ps_err make_auto(ps_plan *plan, const ps_tensor_table *table, const spread *to,
                        ps_chunk_size size)
{
    const uint64_t together = table->arena_count * 4 / to->fragments->n;
    const double even = (double)table->arena_count;
    const double few = size.crowded ? fmin(A_MESSAGE_PAYS * to->n, even * 0.3) : 0;
    const double most = even + fmax(even * 0.03, few);
    uint64_t bytes = ps_plan_auto_chunk_bytes(together, equal_shards(to), size);
    uint64_t blocks = bytes / BYTES_PER_BLOCK;
    PS_TRY(plan_make(plan, table, bytes, to));
    for (uint64_t b = blocks - 1; b > 0 && b >= blocks / 2; b--) {
        if (as_full_as_fullest(plan, to) <= most) break;
        PS_TRY(try_blocks(plan, table, to, b));
    }
    return PS_OK;
}

/* "that of fc.weight" */
static void plan_owner_text(const ps_tensor_table *table, uint32_t step_of, char *out,
                            size_t cap)
{
    snprintf(out, cap, "all optimizers");
    for (int i = table->n_tensors; i-- > 0;)
        if ((uint32_t)table->tensors[i].owner + 1 == step_of)
            snprintf(out, cap, "the optimizer of %.200s", table->tensors[i].name);
}

ps_err ps_step_of_differs(ps_err code, const ps_tensor_table *table, uint64_t step,
                          const uint32_t ranks[2], const uint32_t steps_of[2])
{
    char one[240], other[240];
    plan_owner_text(table, steps_of[0], one, sizeof one);
    plan_owner_text(table, steps_of[1], other, sizeof other);
    return ps_err_set(code,
                      "in step %" PRIu64
                      " worker %u makes the step of %s, worker %u that "
                      "of %s: every rank must step its optimizers in the same order",
                      step + 1, ranks[0], one, ranks[1], other);
}

void ps_chunk_overlap(const ps_chunk *chunk, const ps_tensor *t, uint64_t *begin,
                      uint64_t *end)
{
    uint64_t chunk_end = chunk->offset + chunk->count;
    *begin = chunk->offset > t->offset ? chunk->offset - t->offset : 0;
    *end = chunk_end - t->offset < t->count ? chunk_end - t->offset : t->count;
}

static ps_err make_for(ps_plan *plan, const ps_tensor_table *table, ps_chunk_size size,
                       spread to)
{
    ps_fragments fragments;
    *plan = (ps_plan){0};
    if (to.n == 0 || table->n_tensors == 0)
        return ps_err_set(PS_ERR_ARG, "a plan needs at least one shard and one tensor");
    PS_TRY(ps_fragments_init(&fragments, table, size.fragments ? size.fragments : 1));
    to.fragments = &fragments;
    if (size.bytes)
        PS_TRY(plan_make(plan, table, size.bytes, &to));
    else
        PS_TRY(make_auto(plan, table, &to, size));
    plan->size = size;
    plan->hash = hash_plan(plan, table);
    return PS_OK;
}

ps_err ps_plan_init(ps_plan *plan, const ps_tensor_table *table, ps_chunk_size size,
                    uint32_t n_shards)
{
    const spread equal = {.n = n_shards};
    return make_for(plan, table, size, equal);
}

enum { SHARD_BYTES = 8 << 20, SHARD_BYTES_BESIDE_GPUS = 1 << 20 };

static uint32_t plan_shards_of(const ps_tensor_table *table, uint32_t n_servers,
                               uint64_t shard_bytes, int64_t cores)
{
    enum { MOST = 16 };
    const int64_t parts =
        (int64_t)(table->arena_count * sizeof(float) / n_servers / shard_bytes);
    const int64_t each = cores / (int64_t)n_servers;
    const int64_t n = parts < each ? parts : each;
    return n < 1 ? 1 : n > MOST ? MOST : (uint32_t)n;
}

uint32_t ps_plan_shards_per_server(const ps_config_server *config,
                                   const ps_tensor_table *table, ps_chunk_size size,
                                   uint32_t n_servers)
{
    if (config->shards > 0) return (uint32_t)config->shards;
    if (!size.one_host || n_servers == 0) return 1;
    return plan_shards_of(table, n_servers, SHARD_BYTES, ps_machine_cores());
}

uint32_t ps_plan_shards_beside_gpus(const ps_tensor_table *table, uint32_t n_servers,
                                    uint32_t n_workers, int cores)
{
    enum { THREADS = 2 }; // of a worker: passes, communication
    const int64_t rest = cores - (int64_t)THREADS * n_workers;
    const uint32_t few = plan_shards_of(table, n_servers, SHARD_BYTES, cores);
    const uint32_t many = plan_shards_of(table, n_servers, SHARD_BYTES_BESIDE_GPUS, rest);
    return many > few ? many : few;
}

/* Whole numbers in the ratio of the shares, at least 1, for each shard of each server. */
static ps_err plan_make_weights(const ps_config_server *config, uint32_t n_servers,
                                uint32_t shards, uint32_t **weights)
{
    const ps_float_list *share = &config->share;
    if ((uint32_t)share->n != n_servers)
        return ps_err_set(PS_ERR_CONFIG,
                          "server.share has %d numbers, but there are %u servers: give "
                          "one for each, or none",
                          share->n, n_servers);
    double total = 0;
    for (int i = 0; i < share->n; i++)
        total += share->v[i];
    PS_TRY(PS_NEW(weights, (size_t)n_servers * shards, "plan"));
    for (uint32_t i = 0; i < n_servers * shards; i++)
        (*weights)[i] = (uint32_t)fmax(1, share->v[i / shards] / total * WHOLE_WEIGHT);
    return PS_OK;
}

ps_err ps_plan_init_servers(ps_plan *plan, const ps_tensor_table *table,
                            ps_chunk_size size, uint32_t n_servers,
                            const ps_config_server *config)
{
    *plan = (ps_plan){0};
    uint32_t *weights = NULL;
    const uint32_t shards = ps_plan_shards_per_server(config, table, size, n_servers);
    if (config->share.n > 0)
        PS_TRY(plan_make_weights(config, n_servers, shards, &weights));
    const spread to = {.n = n_servers * shards, .weights = weights};
    const ps_err err = make_for(plan, table, size, to);
    free(weights);
    return err;
}

void ps_plan_fini(ps_plan *plan)
{
    free(plan->chunks);
    free(plan->shard_counts);
    *plan = (ps_plan){0};
}
