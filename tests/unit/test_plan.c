/* The plan over many models: chunks cover the arena, end on blocks, and balance. */
#include "model_spec.h"
#include "plan.h"

#include <math.h>

#include "check.h"
#include "procstat.h"
#include "rng.h"

enum { MAX_TENSORS = 60, BLOCK_BYTES = PS_GRADNORM_BLOCK * 4 };

typedef struct fake {
    ps_model_spec spec;
    ps_tensor tensors[MAX_TENSORS];
    char names[MAX_TENSORS][16];
} fake;

static void add(fake *f, int64_t count)
{
    ps_tensor *t = &f->tensors[f->spec.table.n_tensors];
    char *name = f->names[f->spec.table.n_tensors];
    snprintf(name, sizeof f->names[0], "t%d", f->spec.table.n_tensors);
    *t = (ps_tensor){.name = name, .dims = {1, {count}}, .count = (uint64_t)count};
    t->offset = f->spec.table.arena_count;
    f->spec.table.tensors = f->tensors;
    f->spec.table.arena_count += (t->count + 15) / 16 * 16;
    f->spec.table.n_params += t->count;
    f->spec.table.n_tensors++;
}

/* Sizes from one element to some hundred blocks, small and large in any order. */
static void make_random(fake *f, ps_mt19937 *g)
{
    memset(f, 0, sizeof *f);
    int n = 1 + (int)(ps_mt19937_u32(g) % MAX_TENSORS);
    for (int i = 0; i < n; i++) {
        uint32_t bits = ps_mt19937_u32(g) % 20;
        add(f, 1 + ps_mt19937_u32(g) % (1u << bits));
    }
}

static void assert_covers(const ps_plan *plan, const ps_model_spec *spec)
{
    uint64_t end = spec->table.arena_count;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        const ps_chunk *c = &plan->chunks[i];
        assert_true(c->count > 0);
        assert_int_equal(c->offset + c->count, end); // from the last element to the first
        end = c->offset;
        const ps_tensor *first = &spec->table.tensors[c->first_tensor];
        const ps_tensor *last = &spec->table.tensors[c->last_tensor];
        assert_true(c->offset >= first->offset);
        assert_true(c->offset < first->offset + first->count);
        assert_int_equal((c->offset - first->offset) % PS_GRADNORM_BLOCK, 0);
        assert_true(c->offset + c->count > last->offset);
        bool is_last = c->last_tensor == spec->table.n_tensors - 1;
        assert_true(is_last || c->offset + c->count <= last[1].offset);
        assert_true(c->count <= plan->max_chunk_count);
    }
    assert_int_equal(end, 0);
}

static void assert_balanced(const ps_plan *plan, const ps_model_spec *spec)
{
    uint64_t counts[16] = {0}, most = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++)
        counts[plan->chunks[i].shard] += plan->chunks[i].count;
    for (uint32_t s = 0; s < plan->n_shards; s++) {
        assert_int_equal(counts[s], plan->shard_counts[s]);
        assert_true(counts[s] > 0);
        if (counts[s] > most) most = counts[s];
    }
    double mean = (double)spec->table.arena_count / plan->n_shards;
    double over = (double)most - mean;
    assert_true(over <= 0.05 * mean || over <= (double)plan->max_chunk_count);
}

TEST(random_models_are_covered_and_balanced)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, 1);
    for (int round = 0; round < 400; round++) {
        fake f;
        make_random(&f, &g);
        const uint64_t sizes[] = {0, 1, BLOCK_BYTES, 10 * BLOCK_BYTES, 1 << 20};
        for (uint32_t shards = 1; shards <= 16; shards++) {
            ps_plan plan;
            uint64_t chunk = sizes[(unsigned)round % 5];
            ps_err err = ps_plan_init(&plan, &f.spec.table,
                                      (ps_chunk_size){.bytes = chunk}, shards);
            if (err != PS_OK) {
                assert_error(err, PS_ERR_CONFIG, "chunks");
                /* Only if one chunk per tensor is not enough either. */
                assert_true((uint32_t)f.spec.table.n_tensors < shards);
            } else {
                assert_covers(&plan, &f.spec);
                assert_balanced(&plan, &f.spec);
            }
            ps_plan_fini(&plan);
        }
    }
}

static void init_shared(ps_plan *plan, const ps_model_spec *spec, const double *share,
                        int n, int64_t shards)
{
    ps_config_server config = {.shards = shards, .share.n = n};
    memcpy(config.share.v, share, (size_t)n * sizeof *share);
    assert_ok(ps_plan_init_servers(plan, &spec->table, (ps_chunk_size){0}, (uint32_t)n,
                                   &config));
}

/* Each shard's part is right within 5% of the whole, or a chunk, and is not empty. */
static void assert_shared(const ps_plan *plan, const ps_model_spec *spec,
                          const double *share, int n, int64_t shards)
{
    double total = 0;
    for (int i = 0; i < n; i++)
        total += share[i];
    for (uint32_t s = 0; s < plan->n_shards; s++) {
        const double all = (double)spec->table.arena_count;
        const double wanted = all * share[s / shards] / total / (double)shards;
        const double off = (double)plan->shard_counts[s] - wanted;
        assert_true(plan->shard_counts[s] > 0);
        assert_true(off <= fmax(0.05 * wanted, (double)plan->max_chunk_count));
    }
}

TEST(servers_hold_their_shares)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, 2);
    for (int round = 0; round < 200; round++) {
        fake f;
        make_random(&f, &g);
        const double share[] = {0.3, 0.3, 0.1, 0.1, 1e-6};
        const int n = 1 + round % 5;
        const int64_t shards = 1 + round % 2;
        if (f.spec.table.n_tensors < n * shards) continue;
        ps_plan plan;
        init_shared(&plan, &f.spec, share, n, shards);
        assert_covers(&plan, &f.spec);
        assert_shared(&plan, &f.spec, share, n, shards);
        ps_plan_fini(&plan);
    }
}

TEST(equal_shares_change_nothing)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, 3);
    for (int round = 0; round < 50; round++) {
        fake f;
        make_random(&f, &g);
        const double share[] = {3, 3, 3};
        ps_plan plain, shared;
        if (f.spec.table.n_tensors < 3) continue;
        assert_ok(ps_plan_init(&plain, &f.spec.table, (ps_chunk_size){0}, 3));
        init_shared(&shared, &f.spec, share, 3, 1);
        assert_true(plain.hash == shared.hash);
        ps_plan_fini(&plain);
        ps_plan_fini(&shared);
    }
}

TEST(shards_follow_size_and_cores)
{
    enum { MIB = 1 << 20 };
    const ps_chunk_size here = {.one_host = true}, far = {0};
    const uint32_t cores = (uint32_t)ps_machine_cores();
    const ps_config_server automatic = {.shards = 0}, three = {.shards = 3};
    const ps_tensor_table small = {.arena_count = 4 * MIB / 4},
                          large = {.arena_count = 4096ull * MIB / 4};
    assert_int_equal(ps_plan_shards_per_server(&three, &large, here, 1), 3);
    assert_int_equal(ps_plan_shards_per_server(&automatic, &large, far, 1), 1);
    assert_int_equal(ps_plan_shards_per_server(&automatic, &small, here, 1), 1);
    assert_int_equal(ps_plan_shards_per_server(&automatic, &large, here, 1),
                     cores < 16 ? cores : 16);
    assert_int_equal(ps_plan_shards_per_server(&automatic, &large, here, cores), 1);
}

TEST(shards_beside_gpus_take_the_cores_that_no_worker_needs)
{
    enum { MIB = 1 << 20 };
    const ps_tensor_table small = {.arena_count = 3 * MIB / 4},
                          middle = {.arena_count = 17 * MIB / 4},
                          large = {.arena_count = 4096ull * MIB / 4};
    const struct {
        const ps_tensor_table *table;
        uint32_t servers, workers, wanted;
        int cores;
    } cases[] = {
        {&small, 1, 1, 3, 16},   // one for each MiB
        {&small, 2, 1, 1, 16},   // 1.5 of each server
        {&middle, 1, 1, 14, 16}, // of 17, as the worker has two threads
        {&middle, 2, 2, 6, 16},  // 12 cores are left
        {&middle, 2, 5, 3, 16},  // 6 are
        {&middle, 1, 8, 2, 16},  // none is: as without GPUs
        {&middle, 1, 64, 2, 16},  {&middle, 1, 1, 2, 2},   {&large, 1, 1, 16, 16},
        {&large, 1, 8, 16, 128},  {&large, 4, 8, 16, 128}, {&large, 16, 8, 8, 128},
        {&large, 200, 1, 1, 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(ps_plan_shards_beside_gpus(cases[i].table, cases[i].servers,
                                                    cases[i].workers, cases[i].cores),
                         cases[i].wanted);
}

TEST(a_share_is_wanted_of_each_server)
{
    fake f;
    memset(&f, 0, sizeof f);
    add(&f, 100);
    add(&f, 100);
    ps_config_server config = {.shards = 1, .share = {.n = 1, .v = {1}}};
    ps_plan plan;
    assert_error(
        ps_plan_init_servers(&plan, &f.spec.table, (ps_chunk_size){0}, 2, &config),
        PS_ERR_CONFIG, "server.share has 1 numbers");
    ps_plan_fini(&plan);
}

static void load(const char *file, ps_config *cfg, ps_model_spec *spec)
{
    assert_ok(ps_config_load(cfg, file, NULL, 0));
    assert_ok(ps_model_spec_init(spec, cfg));
}

/* With the automatic sizes, shards differ by at most 5%, for every shipped model of a
 * megabyte and more. */
TEST(shipped_models_balance_within_five_percent)
{
    const char *const files[] = {"configs/mnist-basicnet.yaml",
                                 "configs/resnet18-cifar10.yaml",
                                 "configs/vgg11-stl10.yaml"};
    for (int i = 0; i < 3; i++) {
        ps_config cfg;
        ps_model_spec spec;
        load(files[i], &cfg, &spec);
        for (uint32_t shards = 1; shards <= 8; shards++) {
            ps_plan plan;
            assert_ok(ps_plan_init(&plan, &spec.table, (ps_chunk_size){0}, shards));
            assert_covers(&plan, &spec);
            uint64_t most = 0;
            for (uint32_t s = 0; s < shards; s++)
                if (plan.shard_counts[s] > most) most = plan.shard_counts[s];
            assert_true((double)most * shards <= 1.05 * (double)spec.table.arena_count);
            ps_plan_fini(&plan);
        }
        ps_model_spec_fini(&spec);
        ps_config_fini(&cfg);
    }
}

/* The shards have about equal parts of each fragment, as these travel together. */
static void assert_fragments(const ps_plan *plan, const ps_model_spec *spec, uint32_t n)
{
    uint64_t counts[16] = {0}, end = spec->table.arena_count;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        const ps_chunk *c = &plan->chunks[i];
        uint64_t begin, fragment_end;
        ps_fragments_range(&plan->fragments, c->fragment, &begin, &fragment_end);
        assert_true(c->fragment < n);
        assert_true(c->offset >= begin && c->offset + c->count <= fragment_end);
        if (end == fragment_end) memset(counts, 0, sizeof counts);
        counts[c->shard] += c->count;
        end = c->offset;
        if (end != begin) continue;
        const double mean = (double)(fragment_end - begin) / plan->n_shards;
        for (uint32_t s = 0; s < plan->n_shards; s++)
            assert_true((double)counts[s] <= mean + (double)plan->max_chunk_count);
    }
    assert_int_equal(end, 0);
}

/* Fragments do not depend on chunks and shards, and are as equal as blocks allow. */
static void assert_equal_parts(const ps_fragments *f, const ps_fragments *same)
{
    assert_memory_equal(f->begins, same->begins, f->n * sizeof *f->begins);
    for (uint32_t i = 0; i < f->n; i++) {
        uint64_t begin, end;
        ps_fragments_range(f, i, &begin, &end);
        const double off = (double)(end - begin) - (double)f->count / f->n;
        assert_true(fabs(off) <= PS_GRADNORM_BLOCK + 2 * PS_TENSOR_ALIGN + f->n);
    }
}

TEST(chunks_lie_within_fragments)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, 3);
    for (int round = 0; round < 200; round++) {
        fake f;
        make_random(&f, &g);
        const uint64_t sizes[] = {0, BLOCK_BYTES, 10 * BLOCK_BYTES, 1 << 20};
        const uint32_t n = 1 + ps_mt19937_u32(&g) % 7;
        ps_fragments same;
        const bool possible = ps_fragments_init(&same, &f.spec.table, n) == PS_OK;
        for (uint32_t shards = 1; shards <= 8; shards++) {
            ps_plan plan;
            const ps_chunk_size size = {.bytes = sizes[(unsigned)round % 4],
                                        .fragments = n};
            const ps_err err = ps_plan_init(&plan, &f.spec.table, size, shards);
            assert_true(possible || err == PS_ERR_CONFIG);
            if (possible && shards == 1) assert_ok(err);
            if (err == PS_OK) {
                assert_covers(&plan, &f.spec);
                assert_fragments(&plan, &f.spec, n);
                assert_equal_parts(&plan.fragments, &same);
            }
            ps_plan_fini(&plan);
        }
    }
}

TEST(too_many_fragments_are_told)
{
    fake f;
    ps_fragments fragments;
    memset(&f, 0, sizeof f);
    add(&f, 2 * PS_GRADNORM_BLOCK);
    add(&f, 10);
    assert_ok(ps_fragments_init(&fragments, &f.spec.table, 2));
    assert_int_equal(fragments.begins[0], PS_GRADNORM_BLOCK);
    assert_error(ps_fragments_init(&fragments, &f.spec.table, 8), PS_ERR_CONFIG,
                 "sync.fragments: the model's 8202 "
                 "parameters cannot be cut into 8 fragments");
}

static uint64_t hash_of(const fake *f, uint64_t chunk, uint32_t shards)
{
    ps_plan plan;
    assert_ok(
        ps_plan_init(&plan, &f->spec.table, (ps_chunk_size){.bytes = chunk}, shards));
    uint64_t hash = plan.hash;
    ps_plan_fini(&plan);
    return hash;
}

TEST(the_hash_tells_plans_apart)
{
    fake a, b;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 6; i++)
        add(&a, 3000 * (i + 1));
    uint64_t hash = hash_of(&a, BLOCK_BYTES, 2);
    assert_true(hash == hash_of(&a, BLOCK_BYTES, 2));
    assert_true(hash != hash_of(&a, 2 * BLOCK_BYTES, 2));
    assert_true(hash != hash_of(&a, BLOCK_BYTES, 3));
    memcpy(&b, &a, sizeof b);
    b.spec.table.tensors = b.tensors;
    b.tensors[2].name = (char[]){"other"};
    assert_true(hash != hash_of(&b, BLOCK_BYTES, 2));
    b.tensors[2].name = a.tensors[2].name;
    b.tensors[2].dims = (ps_dims){2, {3, 3000}};
    assert_true(hash != hash_of(&b, BLOCK_BYTES, 2));
}

/* The chunks are the same, the credits are not (credit.h). */
TEST(the_hash_tells_places_apart)
{
    fake f;
    memset(&f, 0, sizeof f);
    add(&f, 30000);
    const ps_chunk_size sizes[] = {
        {.bytes = BLOCK_BYTES},
        {.bytes = BLOCK_BYTES, .one_host = true},
        {.bytes = BLOCK_BYTES, .one_host = true, .crowded = true}};
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++) {
        ps_plan plan;
        assert_ok(ps_plan_init(&plan, &f.spec.table, sizes[i], 2));
        hashes[i] = plan.hash;
        ps_plan_fini(&plan);
    }
    assert_true(hashes[0] != hashes[1] && hashes[1] != hashes[2] &&
                hashes[0] != hashes[2]);
}

TEST(a_bias_rides_with_the_end_of_its_weight)
{
    fake f;
    memset(&f, 0, sizeof f);
    add(&f, 20 * PS_GRADNORM_BLOCK);
    add(&f, 128);
    ps_plan plan;
    assert_ok(
        ps_plan_init(&plan, &f.spec.table, (ps_chunk_size){.bytes = 8 * BLOCK_BYTES}, 1));
    assert_int_equal(plan.n_chunks, 3); // 20 blocks and a bias in parts of at most 8
    assert_int_equal(plan.chunks[0].first_tensor, 0);
    assert_int_equal(plan.chunks[0].last_tensor, 1);
    assert_int_equal(plan.chunks[1].last_tensor, 0);
    ps_plan_fini(&plan);
}

/* The best sizes that were measured on 1 Gbit/s links: 48 KiB for 4.8 and 25 MB. */
TEST(the_automatic_size_grows_with_the_root)
{
    const ps_chunk_size network = {0};
    uint64_t at_25 = ps_plan_auto_chunk_bytes(25u << 20, 4, network);
    assert_int_equal(at_25, 48 << 10);
    assert_int_equal(ps_plan_auto_chunk_bytes(4800000, 4, network), 48 << 10);
    assert_int_equal(ps_plan_auto_chunk_bytes(100u << 20, 4, network), 96 << 10);
    assert_int_equal(ps_plan_auto_chunk_bytes(UINT64_C(1) << 40, 1, network), 1 << 20);
    assert_int_equal(ps_plan_auto_chunk_bytes(100, 16, network), BLOCK_BYTES);
    assert_int_equal(at_25 % BLOCK_BYTES, 0);
}

/* On one host: 512 KiB, and no chunk is below 256 KiB only to be one of four; where that
 * is crowded, 1 MiB, and one chunk is enough. */
TEST(one_host_wants_larger_chunks)
{
    const ps_chunk_size here = {.one_host = true};
    const ps_chunk_size crowded = {.one_host = true, .crowded = true};
    assert_int_equal(ps_plan_auto_chunk_bytes(25u << 20, 4, here), 512 << 10);
    assert_int_equal(ps_plan_auto_chunk_bytes(100, 16, here), BLOCK_BYTES);
    assert_int_equal(ps_plan_auto_chunk_bytes(25u << 20, 2, crowded), 1 << 20);
    assert_int_equal(ps_plan_auto_chunk_bytes(1200u << 10, 2, crowded), 608 << 10);
    assert_int_equal(ps_plan_auto_chunk_bytes(4u << 20, 4, here), 256 << 10);
    assert_int_equal(ps_plan_auto_chunk_bytes(1u << 20, 4, here), 256 << 10);
    assert_int_equal(ps_plan_auto_chunk_bytes(400u << 10, 4, here), 96 << 10);
}

/* A little more for one shard costs less than a message more; much more does not. */
TEST(a_crowded_host_wants_few_messages_of_a_small_model)
{
    fake f;
    memset(&f, 0, sizeof f);
    add(&f, 53002); // of digits-basicnet
    const ps_chunk_size crowded = {.one_host = true, .crowded = true};
    ps_plan plan;
    assert_ok(ps_plan_init(&plan, &f.spec.table, crowded, 2));
    assert_int_equal(plan.n_chunks, 2);
    ps_plan_fini(&plan);
    memset(&f, 0, sizeof f);
    add(&f, 5 << 18); // five chunks of 1 MiB
    assert_ok(ps_plan_init(&plan, &f.spec.table, crowded, 2));
    assert_true(plan.shard_counts[0] < plan.shard_counts[1] + (32 << 10) &&
                plan.shard_counts[1] < plan.shard_counts[0] + (32 << 10));
    ps_plan_fini(&plan);
}

/* The more a codec shrinks, the larger the chunks. A shard keeps at least four chunks, or
 * one where a codec leaves next to nothing. */
TEST(codecs_want_larger_chunks)
{
    const ps_chunk_size half = {.travels = 0.5f}, twentieth = {.travels = 0.05f};
    assert_int_equal(ps_plan_auto_chunk_bytes(4800000, 4, half), 96 << 10);
    uint64_t least = ps_plan_auto_chunk_bytes(800000, 4, half);
    assert_true(least <= 800000 / 16 && least > 800000 / 16 - BLOCK_BYTES);
    least = ps_plan_auto_chunk_bytes(4800000, 4, twentieth);
    assert_true(least <= 4800000 / 4 && least > 4800000 / 4 - BLOCK_BYTES);
    assert_true(ps_plan_auto_chunk_bytes(100u << 20, 4, twentieth) < 2000 << 10);
    assert_true(ps_chunk_size_is_coarse(twentieth) && !ps_chunk_size_is_coarse(half));
    assert_false(ps_chunk_size_is_coarse((ps_chunk_size){0}));
}

TEST(more_shards_than_chunks_is_an_error)
{
    fake f;
    memset(&f, 0, sizeof f);
    add(&f, 100);
    add(&f, 100);
    ps_plan plan;
    assert_ok(ps_plan_init(&plan, &f.spec.table, (ps_chunk_size){0}, 2));
    assert_int_equal(plan.n_chunks, 2);
    ps_plan_fini(&plan);
    assert_int_equal(ps_plan_init(&plan, &f.spec.table, (ps_chunk_size){0}, 3),
                     PS_ERR_CONFIG);
    ps_plan_fini(&plan);
    assert_int_equal(ps_plan_init(&plan, &f.spec.table, (ps_chunk_size){0}, 0),
                     PS_ERR_ARG);
    ps_plan_fini(&plan);
}
