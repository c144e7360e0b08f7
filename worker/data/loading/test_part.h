/* Which samples are the test part, where data.test is a share of the training samples. */
#ifndef PS_TEST_PART_H
#define PS_TEST_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"

/* At random by seed, and of each class nearly the same share: samples of one class have
 * the same key. A class with a single sample is not in the test part. keys: (n); is_test:
 * (n), set. NOMEM. */
ps_err ps_test_part_random(const uint64_t *keys, int64_t n, double share, uint64_t seed,
                           bool *is_test);
/* The last of the samples in that order; order: (n). */
void ps_test_part_last(const int64_t *order, int64_t n, double share, bool *is_test);

/* Where only a part is read: rows becomes the samples of one part, in rising order.
 * Returns how many. */
int64_t ps_test_part_rows(const bool *is_test, int64_t n, bool test, int64_t *rows);

#endif
