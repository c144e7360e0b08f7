/* The index, the sets of ids and the batches against plain arrays; specs. */
#include "row_index.h"

#include <math.h>

#include "check.h"
#include "row_init.h"
#include "row_set.h"
#include "row_spec.h"

enum { N_IDS = 30000 };

static uint64_t drawn;

static uint64_t draw(uint64_t below)
{
    return ps_row_mix(drawn++) % below;
}

/* Low ids, 0 among them, and large ones. */
static uint64_t id_of(uint64_t i)
{
    return i % 2 ? ps_row_mix(i) : i / 2;
}

static ps_row_entry *find(const ps_row_index *index, uint64_t id)
{
    return ps_row_index_find(index, ps_row_index_hash(index, id), id);
}

static void check_index(const ps_row_index *index, const uint32_t *slots, uint32_t n)
{
    uint32_t there = 0, seen = 0;
    for (uint32_t i = 0; i < n; i++) {
        const ps_row_entry *e = find(index, id_of(i));
        assert_int_equal(e ? e->slot : 0, slots[i]);
        there += slots[i] != 0;
    }
    for (uint32_t p = 0; p < PS_ROW_PARTITIONS; p++) {
        ps_row_cursor c = ps_row_cursor_at(index, p, p + 1);
        uint32_t in_partition = 0;
        for (const ps_row_entry *e; (e = ps_row_cursor_next(index, &c));) {
            assert_int_equal(ps_row_partition(ps_row_hash(index->salt, e->id)), p);
            in_partition++;
        }
        assert_int_equal(in_partition, index->counts[p]);
        seen += in_partition;
    }
    assert_int_equal(seen, there);
    ps_row_cursor c = ps_row_cursor_at(index, 0, PS_ROW_PARTITIONS);
    while (ps_row_cursor_next(index, &c))
        seen--;
    assert_int_equal(seen, 0);
}

TEST(an_index_grows_and_shrinks)
{
    static uint32_t slots[N_IDS];
    for (uint64_t seed = 1; seed <= 3; seed++) {
        ps_row_memory memory;
        ps_row_index index;
        memset(slots, 0, sizeof slots);
        drawn = seed << 32;
        ps_row_memory_init(&memory);
        assert_ok(ps_row_index_init(&index, ps_row_hash_salt(7),
                                    (ps_row_key){seed, ps_row_mix(seed)}, &memory));
        for (uint32_t k = 0; k < 5 * N_IDS; k++) {
            // at first most are added, later most are removed
            const uint32_t i = (uint32_t)draw(N_IDS), adds = k < 3 * N_IDS ? 5 : 1;
            ps_row_entry *e = find(&index, id_of(i));
            if (!e && draw(6) < adds) {
                assert_ok(ps_row_index_insert(&index, ps_row_index_hash(&index, id_of(i)),
                                              id_of(i), &e));
                e->slot = slots[i] = k + 1;
            } else if (e && draw(6) >= adds) {
                ps_row_index_remove(&index, e);
                slots[i] = 0;
            }
            if (k % N_IDS == N_IDS - 1) check_index(&index, slots, N_IDS);
        }
        assert_true(index.n_segments > 4);
        // what a cursor removes on its way
        for (uint32_t p = 0; p < PS_ROW_PARTITIONS; p++) {
            ps_row_cursor c = ps_row_cursor_at(&index, p, p + 1);
            for (ps_row_entry *e; (e = ps_row_cursor_next(&index, &c));) {
                if (e->slot % 3 == 0) continue;
                ps_row_index_remove(&index, e);
                ps_row_cursor_back(&c);
            }
        }
        for (uint32_t i = 0; i < N_IDS; i++)
            if (slots[i] % 3) slots[i] = 0;
        check_index(&index, slots, N_IDS);
        ps_row_index_fini(&index);
        ps_row_memory_fini(&memory);
    }
}

/* Ids of one partition alone, as an attacker may send them. */
TEST(one_partition_takes_all)
{
    ps_row_memory memory;
    ps_row_index index;
    uint32_t n = 0;
    ps_row_memory_init(&memory);
    assert_ok(ps_row_index_init(&index, ps_row_hash_salt(1), PS_ROW_KEY_PLAIN, &memory));
    for (uint64_t id = 0; n < 8000; id++) {
        ps_row_entry *e;
        const uint64_t hash = ps_row_index_hash(&index, id);
        if (ps_row_partition(hash) != 77) continue;
        assert_ok(ps_row_index_insert(&index, hash, id, &e));
        e->slot = ++n;
        if (n % 100 != 0) continue;
        // segments of several sizes
        uint32_t seen = 0;
        ps_row_cursor c = ps_row_cursor_at(&index, n % 200 ? 0 : 77, PS_ROW_PARTITIONS);
        while (ps_row_cursor_next(&index, &c))
            seen++;
        assert_int_equal(seen, n);
    }
    assert_int_equal(index.counts[77], 8000);
    ps_row_index_fini(&index);
    ps_row_memory_fini(&memory);
}

/* Every partition has one shard, and every shard a range of them. */
TEST(shards_share_the_partitions)
{
    for (uint32_t n = 1; n <= PS_ROW_PARTITIONS; n += n < 40 ? 1 : 123) {
        assert_int_equal(ps_row_first_partition(n, n), PS_ROW_PARTITIONS);
        for (uint32_t p = 0; p < PS_ROW_PARTITIONS; p++) {
            const uint32_t s = ps_row_shard(p, n);
            assert_true(p >= ps_row_first_partition(s, n));
            assert_true(p < ps_row_first_partition(s + 1, n));
        }
    }
}

TEST(a_batch_has_each_id_once)
{
    enum { LOOKUPS = 5000, SHARDS = 3 };
    static uint64_t ids[LOOKUPS];
    static bool used[LOOKUPS];
    const uint64_t padding = id_of(3), salt = ps_row_hash_salt(9);
    ps_row_batch b;
    ps_row_batch_init(&b);
    for (uint64_t n = 0; n <= LOOKUPS; n = n * 5 + 1) {
        for (uint64_t i = 0; i < n; i++)
            ids[i] = id_of(draw(1 + n / 2));
        assert_ok(ps_row_batch_split(&b, 9, SHARDS, n, ids, n % 2 ? &padding : NULL));
        memset(used, 0, sizeof used);
        for (uint64_t i = 0; i < n; i++) {
            if (n % 2 && ids[i] == padding) {
                assert_true(b.row[i] == PS_ROW_PADDING);
                continue;
            }
            assert_true(b.row[i] < b.n_rows);
            assert_true(b.ids[b.row[i]] == ids[i]);
            // in a shard, an id that is new has the place after those before
            if (!used[b.row[i]] && b.row[i] > 0) {
                bool begins = false;
                for (uint32_t s = 0; s < SHARDS; s++)
                    begins |= b.begin[s] == b.row[i];
                assert_true(begins || used[b.row[i] - 1]);
            }
            used[b.row[i]] = true;
        }
        assert_int_equal(b.begin[SHARDS], b.n_rows);
        for (uint32_t s = 0; s < SHARDS; s++)
            for (uint32_t k = b.begin[s]; k < b.begin[s + 1]; k++) {
                assert_true(used[k]);
                const uint32_t p = ps_row_partition(ps_row_hash(salt, b.ids[k]));
                assert_int_equal(ps_row_shard(p, SHARDS), s);
            }
    }
    ps_row_batch_fini(&b);
}

static double moment(const ps_row_spec *spec, int power)
{
    static float row[64];
    double sum = 0;
    for (uint64_t id = 0; id < 2000; id++) {
        ps_row_init_fill(spec, id * 0x10001, row);
        for (int i = 0; i < 64; i++)
            sum += pow((double)row[i], power) / (2000 * 64);
    }
    return sum;
}

/* Of 128,000 draws: means within four standard deviations. */
TEST(initial_rows_have_their_distribution)
{
    ps_row_spec spec = ps_row_spec_default(PS_ROW_SGD);
    spec.dim = 64;
    spec.init_scale = 2;
    assert_float_equal(moment(&spec, 1), 0, 0.013);
    assert_float_equal(moment(&spec, 2), 4.0 / 3, 0.014);
    spec.init = PS_ROW_NORMAL;
    assert_float_equal(moment(&spec, 1), 0, 0.023);
    assert_float_equal(moment(&spec, 2), 4, 0.064);
    assert_float_equal(moment(&spec, 3), 0, 0.35);
    assert_float_equal(moment(&spec, 4), 48, 1.8);
    spec.init = PS_ROW_CONSTANT;
    assert_float_equal(moment(&spec, 1), 2, 0);
    // another id, table or seed is another row; a longer one begins with the same
    float a[64], other[4][64];
    spec.init = PS_ROW_NORMAL;
    ps_row_init_fill(&spec, 5, a);
    ps_row_init_fill(&spec, 5 + (1ull << 40), other[0]);
    spec.number = 1;
    ps_row_init_fill(&spec, 5, other[1]);
    spec.number = 0, spec.seed = 1ull << 40;
    ps_row_init_fill(&spec, 5, other[2]);
    spec.seed = 0, spec.dim = 33;
    ps_row_init_fill(&spec, 5, other[3]);
    for (int i = 0; i < 3; i++)
        assert_true(memcmp(a, other[i], sizeof a) != 0);
    assert_memory_equal(a, other[3], 33 * sizeof *a);
}

/* As torch.optim and FBGEMM's EXACT_ROWWISE_ADAGRAD document them. */
TEST(defaults)
{
    static const struct {
        ps_row_optimizer optimizer;
        double lr, eps;
    } documented[] = {{PS_ROW_ADAGRAD, 0.01, 1e-10},
                      {PS_ROW_SPARSE_ADAM, 0.001, 1e-8},
                      {PS_ROW_ROWWISE_ADAGRAD, 0.01, 1e-8}};
    for (int i = 0; i < 3; i++) {
        const ps_row_spec spec = ps_row_spec_default(documented[i].optimizer);
        assert_float_equal(spec.lr, documented[i].lr, 0);
        assert_float_equal(spec.eps, documented[i].eps, 0);
    }
    assert_float_equal(ps_row_spec_default(PS_ROW_SGD).lr, 0.001, 0);
}

TEST(specs)
{
    char text[128];
    ps_row_spec a = ps_row_spec_default(PS_ROW_SPARSE_ADAM), b;
    a.dim = 16;
    assert_error(ps_row_spec_check(&a), PS_ERR_ARG, "name");
    snprintf(a.name, sizeof a.name, "user");
    assert_ok(ps_row_spec_check(&a));
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_row_spec_write(&w, &a);
    assert_ok(ps_mp_writer_end(&w));
    assert_ok(ps_row_spec_read(w.base, w.used, "server", &b));
    assert_string_equal(ps_row_spec_difference(&a, &b, text, sizeof text), "");
    assert_true(ps_row_spec_hash(&a) == ps_row_spec_hash(&b));
    for (size_t n = 0; n < w.used; n++)
        assert_int_equal(ps_row_spec_read(w.base, n, "server", &b), PS_ERR_PROTOCOL);
    ps_mp_writer_fini(&w);
    b.optimizer = PS_ROW_SGD;
    assert_string_equal(ps_row_spec_difference(&a, &b, text, sizeof text),
                        "optimizer: sparse_adam and sgd");
    assert_true(ps_row_spec_hash(&a) != ps_row_spec_hash(&b));
    b = a, a.lr = 1, b.lr = 0.1;
    assert_string_equal(ps_row_spec_difference(&a, &b, text, sizeof text),
                        "lr: 1 and 0.1");
    a.lr = nextafter(0.1, 1);
    assert_string_equal(ps_row_spec_difference(&a, &b, text, sizeof text),
                        "lr: 0.10000000000000002 and 0.1");
    b = a, b.beta2 = 1;
    assert_error(ps_row_spec_check(&b), PS_ERR_ARG, "beta2");
    b = a, b.lr = NAN;
    assert_error(ps_row_spec_check(&b), PS_ERR_ARG, "lr nan");
    b = a, b.dim = 0;
    assert_error(ps_row_spec_check(&b), PS_ERR_ARG, "dim 0");
    b = a, b.max_bytes = 1024;
    assert_error(ps_row_spec_check(&b), PS_ERR_ARG, "max_bytes");
    b = a, b.full = PS_ROW_FULL_EVICT;
    assert_error(ps_row_spec_check(&b), PS_ERR_ARG, "evicts rows, and has no max_bytes");
}
