#include "check.h"
#include "sampler.h"
#include "trainer.h"

static ps_epoch epoch_of(int64_t n, int w, int rank, bool shuffle, bool drop_last,
                         uint64_t seed, const int64_t *batch, uint64_t number)
{
    ps_sampler_options o = {n, w, rank, shuffle, drop_last, false, seed, batch, {0, 0}};
    ps_epoch epoch;
    assert_ok(ps_epoch_init(&epoch, &o, number));
    assert_int_equal(epoch.n_batches, ps_sampler_n_batches(&o));
    return epoch;
}

/* torch.randperm(10) with seeds 0 and 42, as PyTorch gives them. */
TEST(one_rank_sees_the_permutation)
{
    static const int64_t seed_0[] = {4, 1, 7, 5, 3, 9, 0, 8, 6, 2};
    static const int64_t seed_42[] = {2, 6, 1, 8, 4, 5, 0, 9, 3, 7};
    const int64_t batch[] = {4};
    ps_epoch a = epoch_of(10, 1, 0, true, false, 0, batch, 0);
    assert_memory_equal(a.indices, seed_0, sizeof seed_0);
    ps_epoch b = epoch_of(10, 1, 0, true, false, 40, batch, 2); // seed + epoch
    assert_memory_equal(b.indices, seed_42, sizeof seed_42);
    assert_int_equal(a.n_batches, 3);
    assert_int_equal(a.batches[2].begin, 8);
    assert_int_equal(a.batches[2].n, 2);
    ps_epoch_fini(&a);
    ps_epoch_fini(&b);
}

/* 10 samples on 4 ranks: padded with the first two, or cut to 8. */
TEST(ranks_take_turns)
{
    static const int64_t padded[] = {3, 7, 1}, cut[] = {3, 7};
    const int64_t batch[] = {2, 2, 2, 2};
    ps_epoch a = epoch_of(10, 4, 3, false, false, 0, batch, 0);
    assert_int_equal(a.n, 3);
    assert_memory_equal(a.indices, padded, sizeof padded);
    assert_int_equal(a.positions[2], 11);
    assert_int_equal(a.batches[1].global_n, 4);
    ps_epoch b = epoch_of(10, 4, 3, false, true, 0, batch, 0);
    assert_int_equal(b.n, 2);
    assert_memory_equal(b.indices, cut, sizeof cut);
    ps_epoch_fini(&a);
    ps_epoch_fini(&b);
}

/* Fewer samples than padding: DistributedSampler repeats the list. */
TEST(padding_is_cyclic)
{
    const int64_t batch[] = {1, 1, 1, 1, 1, 1, 1};
    for (int r = 0; r < 7; r++) {
        ps_epoch e = epoch_of(2, 7, r, false, false, 0, batch, 0);
        assert_int_equal(e.n, 1);
        assert_int_equal(e.indices[0], r % 2);
        ps_epoch_fini(&e);
    }
}

/* Every rank's slices of a global batch, together, are that batch of the permutation. */
static void check_unequal(int64_t n, int w, const int64_t *batch, bool drop_last)
{
    ps_sampler_options o = {n, w, 0, true, drop_last, false, 3, batch, {0, 0}};
    int64_t n_batches = ps_sampler_n_batches(&o), whole = 0, position = 0;
    ps_epoch *epochs = calloc((size_t)w, sizeof *epochs);
    for (int r = 0; r < w; r++) {
        whole += batch[r];
        epochs[r] = epoch_of(n, w, r, true, drop_last, 3, batch, 1);
        assert_int_equal(epochs[r].n_batches, n_batches);
    }
    const int64_t one = n;
    ps_epoch all = epoch_of(n, 1, 0, true, false, 3, &one, 1);
    for (int64_t k = 0; k < n_batches; k++) {
        int64_t sum = 0;
        for (int r = 0; r < w; r++) {
            ps_sampler_batch b = epochs[r].batches[k];
            assert_true(b.n >= 1 && b.n <= batch[r]);
            assert_int_equal(b.global_n, epochs[0].batches[k].global_n);
            for (int64_t i = b.begin; i < b.begin + b.n; i++, position++) {
                assert_int_equal(epochs[r].positions[i], position);
                assert_int_equal(epochs[r].indices[i], all.indices[position % n]);
            }
            sum += b.n;
        }
        assert_int_equal(sum, epochs[0].batches[k].global_n);
        if (k + 1 < n_batches) assert_int_equal(sum, whole);
    }
    assert_int_equal(ps_sampler_n_seen(&o), position);
    if (drop_last)
        assert_true(position <= n && position > n - w - whole);
    else
        assert_true(position >= n && position < n + 2 * w);
    for (int r = 0; r < w; r++)
        ps_epoch_fini(&epochs[r]);
    ps_epoch_fini(&all);
    free(epochs);
}

TEST(unequal_batches_share_each_global_batch)
{
    const int64_t a[] = {96, 32}, b[] = {1, 2, 2}, c[] = {5, 1, 1, 30};
    for (int64_t n = 40; n < 260; n += 7)
        for (int drop = 0; drop < 2; drop++) {
            check_unequal(n, 2, a, drop);
            check_unequal(n, 3, b, drop);
            check_unequal(n, 4, c, drop);
        }
}

/* 160 samples in batches of 96 and 32. The first 128 fill both. The last 32 are shared 3
 * to 1: every rank gets one, then its share of the other 30, rounded down in the running
 * sum (30 * 95 / 126 = 22). */
TEST(the_last_global_batch_is_shared_in_proportion)
{
    const int64_t batch[] = {96, 32};
    ps_epoch a = epoch_of(160, 2, 0, false, false, 0, batch, 0);
    ps_epoch b = epoch_of(160, 2, 1, false, false, 0, batch, 0);
    assert_int_equal(a.batches[0].n, 96);
    assert_int_equal(b.batches[0].n, 32);
    assert_int_equal(a.batches[1].n, 23);
    assert_int_equal(b.batches[1].n, 9);
    assert_int_equal(b.positions[32], 128 + 23);
    ps_epoch_fini(&a);
    ps_epoch_fini(&b);
}

/* 9 samples of 4 ranks are 12 with DistributedSampler's padding, which would be a second
 * global batch without a sample that the first one lacks. */
TEST(no_global_batch_is_of_padding_alone)
{
    const int64_t batch[] = {1, 2, 3, 3};
    for (int rank = 0; rank < 4; rank++) {
        ps_epoch e = epoch_of(9, 4, rank, false, false, 0, batch, 0);
        assert_int_equal(e.n_batches, 1);
        assert_int_equal(e.batches[0].n, batch[rank]);
        ps_epoch_fini(&e);
        e = epoch_of(10, 4, rank, false, false, 0, batch, 0); // sample 9 needs one
        assert_int_equal(e.n_batches, 2);
        assert_int_equal(e.batches[1].n, 1);
        ps_epoch_fini(&e);
    }
}

/* DataLoader(range(23), 3, DistributedSampler(..., num_replicas=3, rank=1, shuffle=True,
 * seed=5, drop_last=either), drop_last=True) in epoch 1, of PyTorch 2.15. */
TEST(short_batches_are_dropped_as_by_a_data_loader)
{
    static const int64_t want[] = {20, 9, 17, 11, 18, 4};
    const int64_t batch[] = {3, 3, 3}, larger[] = {9, 9, 9};
    for (int drop_last = 0; drop_last < 2; drop_last++) {
        ps_sampler_options o = {23, 3, 1, true, drop_last, true, 5, batch, {0, 0}};
        ps_epoch e;
        assert_ok(ps_epoch_init(&e, &o, 1));
        assert_int_equal(ps_sampler_n_batches(&o), 2);
        assert_int_equal(e.n_batches, 2);
        assert_int_equal(e.n, 6);
        assert_memory_equal(e.indices, want, sizeof want);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(e.batches[i].n, 3);
            assert_int_equal(e.batches[i].global_n, 9);
        }
        ps_epoch_fini(&e);
        o.batch = larger; // len(DataLoader) is 0 there
        assert_int_equal(ps_sampler_n_batches(&o), 0);
        assert_error(ps_epoch_init(&e, &o, 1), PS_ERR_CONFIG,
                     "data.drop_last_batch leaves nothing");
    }
}

/* Unequal batches, for which there is no DataLoader: only whole global batches are used.
 */
TEST(short_global_batches_are_dropped)
{
    const int64_t batch[] = {5, 2};
    for (int64_t n = 7; n < 30; n++)
        for (int rank = 0; rank < 2; rank++) {
            ps_sampler_options o = {n, 2, rank, true, false, true, 5, batch, {0, 0}};
            ps_epoch e;
            assert_ok(ps_epoch_init(&e, &o, 0));
            assert_int_equal(e.n_batches, (n + n % 2) / 7);
            for (int64_t k = 0; k < e.n_batches; k++)
                assert_int_equal(e.batches[k].n, batch[rank]);
            ps_epoch_fini(&e);
        }
}

/* The steps of 64 samples of 100, which any number of workers make: one worker without
 * accumulation is a DataLoader of them. */
TEST(short_steps_of_a_global_batch_are_dropped)
{
    const int64_t batch[] = {16, 16, 16, 16};
    for (int w = 1; w <= 4; w *= 2)
        for (int64_t n = 64; n < 300; n += 4) {
            ps_sampler_options o = {.n_samples = n,
                                    .world_size = w,
                                    .drop_last_batch = 4 / w,
                                    .batch = batch};
            assert_int_equal(ps_sampler_n_batches(&o), n / 64 * (4 / w));
            assert_int_equal(ps_sampler_n_seen(&o), n / 64 * 64);
            o.start.position = 64; // after a step of more or fewer workers
            assert_int_equal(ps_sampler_epoch_batches(&o, 0), (n / 64 - 1) * (4 / w));
        }
}

TEST(options_without_sense_are_errors)
{
    const int64_t batch[] = {1, 1, 1, 1}, zero[] = {1, 0, 1, 1};
    ps_epoch e;
    ps_sampler_options o = {3, 4, 0, true, true, false, 0, batch, {0, 0}};
    assert_error(ps_epoch_init(&e, &o, 0), PS_ERR_CONFIG, "drop_last");
    o = (ps_sampler_options){0, 4, 0, true, false, false, 0, batch, {0, 0}};
    assert_int_equal(ps_epoch_init(&e, &o, 0), PS_ERR_ARG);
    o = (ps_sampler_options){9, 4, 4, true, false, false, 0, batch, {0, 0}};
    assert_int_equal(ps_epoch_init(&e, &o, 0), PS_ERR_ARG);
    o = (ps_sampler_options){9, 4, 0, true, false, false, 0, zero, {0, 0}};
    assert_int_equal(ps_epoch_init(&e, &o, 0), PS_ERR_ARG);
    ps_epoch_fini(&e);
}

TEST(evaluation_slices_are_disjoint)
{
    for (int64_t n = 0; n < 30; n++)
        for (int w = 1; w < 8; w++) {
            int64_t next = 0;
            for (int r = 0; r < w; r++) {
                int64_t begin, count;
                ps_sampler_eval_slice(n, NULL, w, r, &begin, &count);
                assert_int_equal(begin, next);
                assert_true(count == n / w || count == n / w + 1);
                next += count;
            }
            assert_int_equal(next, n);
        }
}

TEST(evaluation_slices_follow_shares)
{
    const int64_t shares[] = {16, 4, 16, 1, 7};
    const int w = 5;
    for (int64_t n = 0; n < 300; n += 7) {
        int64_t next = 0;
        for (int r = 0; r < w; r++) {
            int64_t begin, count;
            ps_sampler_eval_slice(n, shares, w, r, &begin, &count);
            assert_int_equal(begin, next);
            const double ideal = (double)(n * shares[r]) / 44;
            assert_true((double)count > ideal - 1 && (double)count < ideal + 1);
            next += count;
        }
        assert_int_equal(next, n);
    }
}

static const char torch_script[] =
    "import sys\n"
    "try:\n"
    "    from torch.utils.data.distributed import DistributedSampler\n"
    "except Exception as e:\n"
    "    print('absent', e); sys.exit()\n"
    "for n in (1, 2, 7, 10, 64, 360, 1437, 6000):\n"
    "  for w in (1, 2, 3, 4, 7, 16):\n"
    "    for rank in sorted({0, w // 2, w - 1}):\n"
    "      for epoch in (0, 1, 5):\n"
    "        for shuffle in (0, 1):\n"
    "          for drop in (0, 1):\n"
    "            if drop and n < w: continue\n"
    "            s = DistributedSampler(range(n), w, rank, bool(shuffle), 11, "
    "bool(drop))\n"
    "            s.set_epoch(epoch)\n"
    "            i = list(s)\n"
    "            print(n, w, rank, epoch, shuffle, drop, len(i), *i)\n";

/* One line of the script: the options, the count, the indices. */
static void check_torch_line(char *line)
{
    int64_t v[7], batch[16];
    for (int i = 0; i < 7; i++)
        v[i] = strtoll(line, &line, 10);
    for (int i = 0; i < 16; i++)
        batch[i] = 3;
    ps_epoch e = epoch_of(v[0], (int)v[1], (int)v[2], v[4] != 0, v[5] != 0, 11, batch,
                          (uint64_t)v[3]);
    assert_int_equal(e.n, v[6]);
    for (int64_t i = 0; i < e.n; i++)
        assert_int_equal(e.indices[i], strtoll(line, &line, 10));
    ps_epoch_fini(&e);
}

/* Against DistributedSampler itself where there is PyTorch. */
TEST(indices_are_pytorchs)
{
    char command[sizeof torch_script + 64];
    snprintf(command, sizeof command,
             "${PS_TORCH_PYTHON:-/usr/bin/python3} -c \"%s\" 2>&1", torch_script);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    char *line = NULL;
    size_t size = 0;
    int n_lines = 0;
    bool absent = false;
    while (getline(&line, &size, pipe) > 0) {
        absent = absent || line[0] < '0' || line[0] > '9';
        if (absent) continue;
        check_torch_line(line);
        n_lines++;
    }
    free(line);
    pclose(pipe);
    if (!absent) {
        assert_true(n_lines > 1000);
        return;
    }
    print_message("[  SKIPPED ] there is no PyTorch to compare with\n");
    skip();
}

/* Marks what a rank sees of an epoch, from micro-batch `from` on to `to`. */
static int64_t see(const ps_sampler_options *o, uint64_t number, int64_t from, int64_t to,
                   int *seen)
{
    ps_epoch e;
    int64_t global_n = 0;
    assert_ok(ps_epoch_init(&e, o, number));
    assert_int_equal(e.n_batches, ps_sampler_epoch_batches(o, number));
    for (int64_t k = from; k < e.n_batches && k < to; k++) {
        for (int64_t i = 0; i < e.batches[k].n; i++)
            seen[e.positions[e.batches[k].begin + i]]++;
        global_n += e.batches[k].global_n;
    }
    ps_epoch_fini(&e);
    return global_n;
}

/* W ranks make some steps of an epoch, then V ranks go on. Every position is seen once.
 */
TEST(other_ranks_go_on_at_the_same_sample)
{
    const int64_t equal[] = {3, 3, 3, 3, 3}, unequal[] = {3, 1, 2, 5, 4};
    for (int w = 1; w <= 5; w++)
        for (int v = 1; v <= 5; v++)
            for (int64_t steps = 0; steps < 40; steps++) {
                const int64_t *batch = steps % 2 ? equal : unequal;
                int seen[300] = {0};
                int64_t position = 0;
                ps_sampler_options o = {
                    .n_samples = 97, .shuffle = true, .seed = 3, .batch = batch};
                for (o.world_size = w, o.rank = 0; o.rank < w; o.rank++)
                    position = see(&o, 2, 0, steps, seen);
                o.start = (ps_sampler_start){2, position};
                for (o.world_size = v, o.rank = 0; o.rank < v; o.rank++) {
                    const int64_t more = see(&o, 2, 0, INT64_MAX, seen);
                    assert_true((more > 0) == (position < 97)); // no step of padding
                }
                for (int i = 0; i < 97; i++)
                    assert_int_equal(seen[i], 1);
                o.rank = 0; // the next epoch is a whole one
                assert_int_equal(ps_sampler_epoch_batches(&o, 3),
                                 ps_sampler_n_batches(&o));
            }
}

/* The same ranks go on with the batches that they would have had. */
TEST(the_same_ranks_go_on_with_their_batches)
{
    const int64_t equal[] = {3, 3, 3},
                  unequal[] = {3, 1, 3}; // a sum that 3 does not divide
    for (int n = 0; n < 80; n++) {
        ps_sampler_options o = {.n_samples = 50 + n,
                                .world_size = 3,
                                .rank = n % 3,
                                .shuffle = true,
                                .drop_last = n / 2 % 2,
                                .drop_last_batch = n / 4 % 2,
                                .batch = n % 2 ? equal : unequal};
        ps_epoch whole, rest;
        assert_ok(ps_epoch_init(&whole, &o, 4));
        int64_t position = 0;
        for (int64_t k = 0; k < whole.n_batches; k++) {
            o.start = (ps_sampler_start){4, position};
            assert_ok(ps_epoch_init(&rest, &o, 4));
            assert_int_equal(rest.n_batches, whole.n_batches - k);
            const int64_t at = whole.batches[k].begin;
            assert_int_equal(rest.n, whole.n - at);
            assert_memory_equal(rest.indices, whole.indices + at,
                                (size_t)rest.n * sizeof *rest.indices);
            assert_memory_equal(rest.positions, whole.positions + at,
                                (size_t)rest.n * sizeof *rest.positions);
            assert_int_equal(rest.batches[0].global_n, whole.batches[k].global_n);
            position += whole.batches[k].global_n;
            ps_epoch_fini(&rest);
        }
        o.start.position = position; // every sample was seen
        assert_ok(ps_epoch_init(&rest, &o, 4));
        assert_int_equal(rest.n_batches, 0);
        ps_epoch_fini(&rest);
        ps_epoch_fini(&whole);
    }
}

/* "train.epochs: 1000000000000000" stands for no end; ranks tell steps as doubles. */
TEST(a_job_of_very_many_epochs_has_an_end)
{
    const int64_t batch[] = {1};
    const ps_sampler_options o = {.n_samples = 1000000, .world_size = 1, .batch = batch};
    ps_config config = {.train = {.epochs = 3}};
    assert_true(ps_trainer_total_steps(&config, &o, 1, 0) == 3000000);
    config.train.epochs = 1000000000000000;
    assert_true(ps_trainer_total_steps(&config, &o, 1, 0) == 1000000000000000);
    config.train.steps = 5;
    assert_true(ps_trainer_total_steps(&config, &o, 1, 0) == 5);
}
