#include <unistd.h>

#include "check.h"
#include "loader.h"
#include "mixup.h"

enum { SAMPLES = 103, PIXELS = 12 };

static uint8_t values[SAMPLES * PIXELS];
static int32_t labels[SAMPLES];
static ps_dataset dataset = {
    .n = SAMPLES, .dims = {3, {1, 3, 4}}, .values = values, .labels = labels};
static const ps_dims input = {3, {1, 3, 4}};
static const int64_t batch[2] = {8, 8};
static ps_config config = {.train = {.seed = 5},
                           .data = {.scale = 1, .prefetch = 2, .flip = true}};
static ps_sampler_options sampler = {SAMPLES, 2, 1, true, false, false, 9, batch, {0, 0}};

/* Pixel 0 of each sample is its index; labels are the index too. */
static int begin(void **state)
{
    for (int i = 0; i < SAMPLES * PIXELS; i++)
        values[i] = (uint8_t)(i % PIXELS == 0 ? i / PIXELS : i % 251);
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = i;
    return 0;
}

static ps_loader *new_loader(const ps_sampler_options *s, int64_t from, int64_t n)
{
    ps_loader_options o = {&config, &dataset, &input, s,     from, n,
                           8,       SAMPLES,  0,      false, NULL};
    ps_loader *loader = NULL;
    assert_ok(ps_loader_create(&o, &loader));
    return loader;
}

static ps_loaded *next(ps_loader *loader)
{
    ps_loaded *loaded = NULL;
    assert_ok(ps_loader_next(loader, ps_deadline_in_ms(20000), &loaded));
    return loaded;
}

/* Batch k of the epoch holds the sampler's samples. There is nothing after the last
 * batch. */
static void check_epoch(ps_loader *loader, uint64_t number, int64_t first)
{
    ps_epoch epoch;
    assert_ok(ps_epoch_init(&epoch, &sampler, number));
    assert_ok(ps_loader_epoch(loader, number, first));
    for (int64_t k = first; k < epoch.n_batches; k++) {
        ps_loaded *loaded = next(loader);
        assert_non_null(loaded);
        assert_int_equal(loaded->n, epoch.batches[k].n);
        assert_int_equal(loaded->global_n, epoch.batches[k].global_n);
        assert_int_equal((uintptr_t)loaded->x % 64, 0);
        for (int64_t i = 0; i < loaded->n; i++) {
            int64_t at = epoch.batches[k].begin + i, index = epoch.indices[at];
            assert_int_equal(loaded->labels[i], index);
            assert_int_equal(loaded->positions[i], epoch.positions[at]);
            const float *x = loaded->x + i * PIXELS;
            assert_true(x[0] == (float)index || x[3] == (float)index); // or flipped
        }
        ps_loader_release(loader, loaded);
    }
    assert_null(next(loader));
    assert_null(next(loader));
    ps_epoch_fini(&epoch);
}

TEST(batches_are_the_samplers)
{
    ps_loader *loader = new_loader(&sampler, 0, 0);
    for (uint64_t e = 0; e < 5; e++)
        check_epoch(loader, e, 0);
    ps_loader_destroy(&loader);
    assert_null(loader);
}

TEST(an_epoch_starts_anywhere)
{
    ps_loader *loader = new_loader(&sampler, 0, 0);
    check_epoch(loader, 3, 4);
    check_epoch(loader, 3, 6);
    check_epoch(loader, 3, 7); // 52 samples by 8: 7 batches, so none is left
    check_epoch(loader, 3, 100);
    ps_loader_destroy(&loader);
}

/* A resumed epoch gives the same augmented pixels, whatever was prepared before. */
TEST(replays_are_equal)
{
    float x[8 * PIXELS];
    ps_loader *loader = new_loader(&sampler, 0, 0);
    assert_ok(ps_loader_epoch(loader, 2, 0));
    for (int k = 0; k < 3; k++)
        ps_loader_release(loader, next(loader));
    ps_loaded *loaded = next(loader);
    memcpy(x, loaded->x, sizeof x);
    ps_loader_release(loader, loaded);
    for (int round = 0; round < 50; round++) {
        assert_ok(ps_loader_epoch(loader, (uint64_t)round, 0));
        assert_ok(ps_loader_epoch(loader, 2, 3));
        loaded = next(loader);
        assert_memory_equal(loaded->x, x, sizeof x);
        ps_loader_release(loader, loaded);
    }
    ps_loader_destroy(&loader);
}

TEST(evaluation_is_in_order)
{
    ps_loader *loader = new_loader(NULL, 50, 53);
    for (int round = 0; round < 2; round++) {
        int64_t at = 50;
        assert_ok(ps_loader_epoch(loader, 0, 0));
        for (ps_loaded *l; (l = next(loader)) != NULL; ps_loader_release(loader, l))
            for (int64_t i = 0; i < l->n; i++, at++) {
                assert_int_equal(l->labels[i], at);
                assert_true(l->x[i * PIXELS] == (float)at); // never flipped
            }
        assert_int_equal(at, SAMPLES);
    }
    ps_loader_destroy(&loader);
    loader = new_loader(NULL, 103, 0);
    assert_ok(ps_loader_epoch(loader, 0, 0));
    assert_null(next(loader));
    ps_loader_destroy(&loader);
}

/* A caller that keeps all prefetch + 1 batches gets a TIMEOUT, and can go on after it
 * returns one. */
TEST(held_batches_are_bounded)
{
    ps_loader *loader = new_loader(&sampler, 0, 0);
    ps_loaded *held[3], *more = NULL;
    assert_ok(ps_loader_epoch(loader, 0, 0));
    for (int i = 0; i < 3; i++)
        held[i] = next(loader);
    assert_int_equal(ps_loader_next(loader, ps_deadline_in_ms(30), &more),
                     PS_ERR_TIMEOUT);
    assert_null(more);
    float first = held[1]->x[0];
    ps_loader_epoch(loader, 1, 0); // held batches stay valid
    assert_true(held[1]->x[0] == first);
    for (int i = 2; i >= 0; i--)
        ps_loader_release(loader, held[i]);
    check_epoch(loader, 4, 0);
    ps_loader_destroy(&loader);
}

TEST(destroyed_at_any_moment)
{
    for (int i = 0; i < 200; i++) {
        ps_loader *loader = new_loader(&sampler, 0, 0);
        if (i % 4 > 0) ps_loader_epoch(loader, (uint64_t)i, 0);
        if (i % 4 > 1) next(loader);
        if (i % 4 > 2) ps_loader_epoch(loader, (uint64_t)i + 1, 2);
        if (i % 8 == 7) usleep((useconds_t)(i * 3));
        ps_loader_destroy(&loader);
    }
}

/* Samples and labels of a batch are mixed by one lambda, which its first sample decides.
 */
static void check_mixed(const ps_loaded *plain, const ps_loaded *mixed, uint32_t epoch)
{
    const float lambda =
        ps_mixup_lambda(0.3, (ps_draw_key){5, epoch, plain->positions[0]});
    for (int64_t i = 0; i < plain->n; i++) {
        const int64_t before = i > 0 ? i - 1 : plain->n - 1;
        for (int64_t k = 0; k < PIXELS; k++) {
            const float a = plain->x[i * PIXELS + k], b = plain->x[before * PIXELS + k];
            const float wanted = lambda * a + (1 - lambda) * b;
            assert_float_equal(mixed->x[i * PIXELS + k], wanted, 1e-4);
        }
        for (int64_t c = 0; c < SAMPLES; c++) {
            const float wanted = (c == plain->labels[i] ? lambda : 0) +
                                 (c == plain->labels[before] ? 1 - lambda : 0);
            assert_float_equal(mixed->targets[i * SAMPLES + c], wanted, 1e-6);
        }
    }
}

TEST(mixed_batches_do_not_depend_on_where_they_begin)
{
    ps_loader *plain = new_loader(&sampler, 0, 0);
    ps_config mixes = config;
    mixes.data.mixup = 0.3;
    mixes.data.threads = 3;
    ps_loader_options o = {
        &mixes, &dataset, &input, &sampler, 0,   0,
        8,      SAMPLES,  0,      true,     NULL}; // they stay no bytes
    int64_t channels;
    ps_loader *mixed = NULL;
    assert_ok(ps_loader_create(&o, &mixed));
    assert_null(ps_loader_byte_values(mixed, &channels));
    for (int64_t first = 0; first < 4; first++) {
        ps_loaded *a, *b;
        assert_ok(ps_loader_epoch(plain, 2, first));
        assert_ok(ps_loader_epoch(mixed, 2, first));
        while ((a = next(plain)) != NULL) {
            assert_non_null(b = next(mixed));
            assert_null(a->targets);
            check_mixed(a, b, 2);
            ps_loader_release(plain, a);
            ps_loader_release(mixed, b);
        }
        assert_null(next(mixed));
    }
    ps_loader_destroy(&mixed);
    ps_loader_destroy(&plain);
}

TEST(bytes_stand_for_the_values)
{
    ps_loader *plain = new_loader(&sampler, 0, 0);
    ps_loader_options o = {&config, &dataset, &input, &sampler, 0,   0,
                           8,       SAMPLES,  0,      true,     NULL};
    ps_loader *kept = NULL;
    int64_t channels;
    assert_ok(ps_loader_create(&o, &kept));
    assert_null(ps_loader_byte_values(plain, &channels));
    const float *stand_for = ps_loader_byte_values(kept, &channels);
    assert_int_equal(channels, 1);
    assert_ok(ps_loader_epoch(plain, 3, 0));
    assert_ok(ps_loader_epoch(kept, 3, 0));
    for (ps_loaded *a, *b; (a = next(plain)) != NULL; ps_loader_release(kept, b)) {
        assert_non_null(b = next(kept));
        assert_null(b->x);
        assert_int_equal(b->n, a->n);
        for (int64_t i = 0; i < a->n * PIXELS; i++)
            assert_true(stand_for[b->bytes[i]] == a->x[i]);
        ps_loader_release(plain, a);
    }
    ps_loader_destroy(&kept);
    ps_loader_destroy(&plain);
}

TEST(errors_come_from_next_or_create)
{
    const ps_dims wrong = {3, {3, 32, 32}};
    ps_loader_options o = {&config, &dataset, &wrong, &sampler, 0,   0,
                           8,       SAMPLES,  0,      false,    NULL};
    ps_loader *loader = NULL;
    assert_int_equal(ps_loader_create(&o, &loader), PS_ERR_SHAPE);
    assert_null(loader);
    assert_string_equal(ps_err_message(),
                        "data is (1, 3, 4), the model's input is (3, 32, 32): set "
                        "data.resize or model.input");

    ps_sampler_options dropping = {SAMPLES, 104, 0, true, true, false, 0, NULL, {0, 0}};
    int64_t many[104];
    for (int i = 0; i < 104; i++)
        many[i] = 1;
    dropping.batch = many;
    loader = new_loader(&dropping, 0, 0);
    ps_loaded *loaded = NULL;
    assert_int_equal(ps_loader_next(loader, ps_deadline_in_ms(10), &loaded), PS_ERR_ARG);
    ps_loader_epoch(loader, 0, 0);
    assert_error(ps_loader_next(loader, ps_deadline_in_ms(20000), &loaded), PS_ERR_CONFIG,
                 "drop_last");
    ps_loader_destroy(&loader);
}

static int begin_with_two_threads(void **state)
{
    config.data.threads = 2;
    return begin(state);
}

int main(void)
{
    const int failed = check_run(begin, NULL);
    return failed + check_run(begin_with_two_threads, NULL);
}
