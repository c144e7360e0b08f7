/* log_softmax keeps its digits where logits are large. */
#include <math.h>

#include "arith.h"
#include "check.h"

enum { CLASSES = 4 };

TEST(the_error_is_that_of_the_result)
{
    const float gaps[] = {1, 3, 10, 15}, tops[] = {0, 20, -20, 1000, 1e5f, 1e30f};
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
        for (size_t t = 0; t < sizeof tops / sizeof *tops; t++) {
            float x[CLASSES];
            double sum = 0;
            for (int c = 0; c < CLASSES; c++)
                x[c] = tops[t] - gaps[g] * (float)c;
            for (int c = 0; c < CLASSES; c++)
                sum += exp((double)x[c] - x[0]);
            const ps_log_sum z = ps_log_sum_exp(CLASSES, x);
            for (int c = 0; c < CLASSES; c++) {
                const double wanted = (double)x[c] - x[0] - log(sum);
                assert_true(fabs(ps_log_prob(x[c], z) - wanted) <=
                            2e-7 + 2e-7 * fabs(wanted));
            }
        }
}

TEST(what_is_not_finite_stays_so)
{
    const float rows[][CLASSES] = {{0, NAN, 1, 2}, {0, INFINITY, 1, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_true(isnan(ps_log_prob(rows[i][1], ps_log_sum_exp(CLASSES, rows[i]))));
    const float none[CLASSES] = {-INFINITY, 0, 0, 0};
    assert_true(ps_log_prob(none[0], ps_log_sum_exp(CLASSES, none)) == -INFINITY);
}
