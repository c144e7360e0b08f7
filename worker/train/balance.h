/* Workers of unequal speed: each gets a share of the global batch by its measured speed,
 * so that all need the same time for a step. Where workers make rounds of steps by
 * themselves, a slower one makes fewer steps, so that all need the same time for a round.
 */
#ifndef PS_BALANCE_H
#define PS_BALANCE_H

#include <stdint.h>

/* How often the first share fits into the largest that a worker can get. */
enum { PS_BALANCE_MOST = 4 };

/* Divides total samples in proportion to speeds (n, above 0): at least 1 and at most
 * `most` each, exactly total together; n <= total <= n * most. The same on every rank
 * that has the same speeds. out (n). */
void ps_balance(const double *speeds, int n, int64_t total, int64_t most, int64_t *out);

/* Steps that take as long as `most` steps of the fastest worker, rounded; at least 1.
 * speeds (n): steps per second; 0: not known, and out stays as it is. out (n). */
void ps_balance_rounds(const double *speeds, int n, int64_t most, int64_t *out);

/* Writes n numbers with commas between them, as many as fit; returns text. */
enum { PS_BALANCE_TEXT_BYTES = 256 };
const char *ps_balance_text(const int64_t *numbers, int n,
                            char text[PS_BALANCE_TEXT_BYTES]);

#endif
