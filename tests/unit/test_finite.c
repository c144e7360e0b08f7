#include <math.h>

#include "check.h"
#include "finite.h"

enum { N = 1000 };

TEST(finds_one_at_any_place)
{
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = i % 2 ? -3.4028235e38f : 1e-45f; // the largest and the smallest there are
    assert_true(ps_finite_all(x, N));
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int i = 0; i < N; i++) {
        float kept = x[i];
        x[i] = bad[i % 4];
        assert_false(ps_finite_all(x, N));
        assert_true(ps_finite_all(x, (uint64_t)i));
        x[i] = kept;
    }
    assert_true(ps_finite_all(x, 0));
}
