/* Runs the same computation at every vector level that the processor and the build have.
 */
#ifndef TEST_LEVELS_H
#define TEST_LEVELS_H

#include "check.h"
#include "cpu_level.h"
#include "rng.h"

typedef struct output {
    uint8_t *bytes;
    size_t n, room;
} output;

static inline void put(output *o, const void *bytes, size_t n)
{
    if (o->n + n > o->room) {
        o->room = 2 * (o->n + n);
        o->bytes = realloc(o->bytes, o->room);
        assert_non_null(o->bytes);
    }
    if (n > 0) memcpy(o->bytes + o->n, bytes, n);
    o->n += n;
}

/* Numbers of all magnitudes; every 97th is a special value. */
static inline void fill(uint64_t seed, uint64_t n, float *out)
{
    static const float special[] = {0.0f,     -0.0f, 1e-42f, -1e-39f,
                                    65504.0f, 3e38f, -3e38f};
    ps_mt19937 g;
    ps_mt19937_seed(&g, seed);
    ps_uniform(&g, -1.0f, 1.0f, 0, n, out);
    for (uint64_t i = 0; i < n; i++) {
        out[i] *= out[i] * out[i];
        if (i % 97 == 96) out[i] = special[i / 97 % 7];
    }
}

/* Checks that compute's output has the same bits at every level. */
static inline void same_at_every_level(void (*compute)(output *o))
{
    static const char *const names[] = {"plain", "avx2", "avx512"};
    output first = {0};
    for (int i = 0; i < 3; i++) {
        output o = {0};
        if (ps_cpu_level_use(names[i]) != PS_OK) {
            assert_int_not_equal(i, 0);
            print_message("%s\n", ps_err_message());
            continue;
        }
        compute(i == 0 ? &first : &o);
        if (i > 0) {
            assert_int_equal(o.n, first.n);
            for (size_t at = 0; at < o.n; at++)
                if (o.bytes[at] != first.bytes[at])
                    fail_msg("%s differs from plain at byte %zu", names[i], at);
        }
        free(o.bytes);
    }
    assert_true(first.n > 0);
    free(first.bytes);
    assert_ok(ps_cpu_level_use("auto"));
}

#endif
