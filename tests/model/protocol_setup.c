#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "protocol_world.h"

constants K;
expected E[STEPS_MOST + 1];

static void must(ps_err err, const char *what)
{
    if (err == PS_OK) return;
    fprintf(stderr, "%s: %s\n", what, ps_err_message());
    exit(2);
}

static void configure(const scenario *s)
{
    static const char *const base[] = {
        "model={input: [2], loss: mse, layers: [{linear: 1}]}",
        "optimizer={name: sgd, lr: 0.5, momentum: 0.5}",
        "schedule.name=constant",
        "exchange.shm=off",
        "exchange.codec_min=1",
        "exchange.codec_warmup=0",
        "exchange.codec_cooldown=0",
        "job.workers=2",
    };
    enum { BASE = sizeof base / sizeof base[0], MORE = 8 };
    const char *all[BASE + MORE];
    int n = BASE;
    memcpy(all, base, sizeof base);
    for (int i = 0; i < MORE && s->settings[i]; i++)
        all[n++] = s->settings[i];
    must(ps_config_load(&K.config, NULL, all, n), s->name);
    must(ps_step_rule_init(&K.rule, &K.config), "the rule");
    must(ps_step_rule_start(&K.rule, &K.config, s->steps), "the rule");
    K.waits = ps_step_rule_waits(&K.rule);
    K.coded = K.config.exchange.codec != PS_CODEC_NONE;
}

/* Two tensors; each is a chunk of a shard of its own. */
static void plan(void)
{
    const ps_dims dims = {.n = 1, .d = {ELEMENTS}};
    for (int i = 0; i < SHARDS; i++) {
        int index;
        must(ps_tensor_table_add(&K.table, i ? "b" : "a", dims, PS_TENSOR_WEIGHT,
                                 ELEMENTS, &index),
             "a tensor");
    }
    for (uint32_t i = 0; i < SHARDS; i++) {
        const int tensor = (int)(SHARDS - 1 - i);
        K.chunks[i] = (ps_chunk){.offset = K.table.tensors[tensor].offset,
                                 .count = ELEMENTS,
                                 .first_tensor = tensor,
                                 .last_tensor = tensor,
                                 .shard = i};
    }
    static uint64_t counts[SHARDS] = {ELEMENTS, ELEMENTS};
    K.plan = (ps_plan){.n_chunks = SHARDS,
                       .chunks = K.chunks,
                       .n_shards = SHARDS,
                       .shard_counts = counts,
                       .max_chunk_count = ELEMENTS};
    if (K.table.arena_count > ARENA) abort();
}

void world_gradient(uint32_t rank, uint64_t step, const float *params, float *grads)
{
    ps_hash begin;
    ps_hash_init(&begin);
    ps_hash_u64(&begin, rank);
    ps_hash_u64(&begin, step);
    ps_hash_bytes(&begin, params, ARENA * sizeof *params);
    for (uint32_t i = 0; i < ARENA; i++) {
        ps_hash h = begin;
        ps_hash_u64(&h, i);
        grads[i] = (float)(ps_hash_value(&h) >> 20 & 0xffff) / 64.0f - 512.0f;
    }
}

/* ---- what has to come out ---- */

/* The elements of arenas that belong to tensors. */
static bool is_element(uint32_t i)
{
    for (uint32_t c = 0; c < SHARDS; c++)
        if (i >= K.chunks[c].offset && i < K.chunks[c].offset + ELEMENTS) return true;
    return false;
}

/* SGD with momentum, as PyTorch's: buf = g, later buf = mu * buf + g; p -= lr * buf. All
 * of these numbers are multiples of powers of two, and exact. */
static void compute_step(const expected *now, expected *next, uint64_t step)
{
    const float lr = (float)K.rule.optimizer.lr, mu = (float)K.rule.optimizer.momentum;
    float grads[WORKERS][ARENA];
    for (uint32_t r = 0; r < WORKERS; r++)
        world_gradient(r, step, now->params, grads[r]);
    *next = *now;
    for (uint32_t i = 0; i < ARENA; i++) {
        if (!is_element(i)) continue;
        const float sum = grads[0][i] + grads[1][i];
        next->states[0][i] = step == 0 ? sum : mu * now->states[0][i] + sum;
        next->weights[i] = now->weights[i] - lr * next->states[0][i];
    }
    memcpy(next->params, next->weights, sizeof next->params);
}

static void expect_all(uint64_t steps)
{
    memset(E, 0, sizeof E);
    for (uint32_t i = 0; i < ARENA; i++)
        if (is_element(i)) E[0].params[i] = 100.0f + (float)i;
    memcpy(E[0].weights, E[0].params, sizeof E[0].weights);
    E[0].knows_params = E[0].knows_weights[0] = E[0].knows_weights[1] = true;
    if (K.coded || K.waits) return;
    for (uint64_t v = 0; v < steps; v++)
        compute_step(&E[v], &E[v + 1], v);
}

void world_expect(float *known, bool *knows, const float *found, uint32_t first,
                  uint32_t n, const char *what, uint64_t version)
{
    if (!*knows) memcpy(known + first, found, n * sizeof *found);
    *knows = true;
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(known + first + i, found + i, sizeof *found) != 0) {
            world_wrong("%s at version %d: element %u is %g, not %g", what, (int)version,
                        first + i, (double)found[i], (double)known[first + i]);
            return;
        }
}

void world_set_up(const scenario *s)
{
    ps_tensor_table_fini(&K.table);
    ps_config_fini(&K.config);
    memset(&K, 0, sizeof K);
    configure(s);
    plan();
    expect_all(s->steps);
}
