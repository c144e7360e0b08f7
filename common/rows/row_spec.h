/* What a table of sparse rows is: the settings that every rank and every shard have the
 * same of.
 *
 * A table maps 64-bit ids to rows of float32. Any id has a row: until a gradient reaches
 * it, its row is a pure function of (seed, table, id), and takes no memory. All
 * optimizers are lazy: a row without a gradient does not move. g is the sum over look-ups
 * and ranks:
 *
 *   sgd              p = fma(-lr, g, p)                      torch.optim.SGD
 *   adagrad          s += g*g
 *                    p = fma(-lr_t, g / (sqrt(s) + eps), p)  torch.optim.Adagrad, its
 * sparse lr_t = lr / (1 + (t - 1) lr_decay)      path sparse_adam      m += (g - m)(1 -
 * b1); v += (g*g - v)(1 - b2) p -= lr sqrt(1 - b2^t) / (1 - b1^t) * (m / (sqrt(v) + eps))
 *                                                            torch.optim.SparseAdam
 *   rowwise_adagrad  s += mean over the row of g*g
 *                    p -= lr / (sqrt(s) + eps) * g           FBGEMM EXACT_ROWWISE_ADAGRAD
 */
#ifndef PS_ROW_SPEC_H
#define PS_ROW_SPEC_H

#include <stdint.h>

#include "config_words.h"
#include "err.h"
#include "mp_map.h"
#include "word.h"

enum { PS_ROW_NAME_BYTES = 64, PS_ROW_DIM_MAX = 65536, PS_ROW_TABLES_MAX = 4096 };
enum { PS_ROW_ADMIT_MAX = 1 << 30 };
enum { PS_ROW_INDEX_BYTES = 27 }; // that an id takes in the index, on average

typedef enum ps_row_optimizer {
    PS_ROW_SGD,
    PS_ROW_ADAGRAD,
    PS_ROW_SPARSE_ADAM,
    PS_ROW_ROWWISE_ADAGRAD,
} ps_row_optimizer;
extern const ps_word ps_row_optimizer_words[];

typedef enum ps_row_init {
    PS_ROW_UNIFORM,  // in [-scale, scale)
    PS_ROW_NORMAL,   // of standard deviation scale
    PS_ROW_CONSTANT, // scale itself
} ps_row_init;
extern const ps_word ps_row_init_words[];

/* What happens when a table reaches max_bytes. */
typedef enum ps_row_full {
    PS_ROW_FULL_END,   // the job ends, with an error that names the table
    PS_ROW_FULL_EVICT, // the rows whose last gradient is the oldest begin anew
} ps_row_full;
extern const ps_word ps_row_full_words[];

extern const ps_word ps_row_codec_words[]; // none, fp16, int8

/* A struct without pointers, so that it can be copied and compared member by member. */
typedef struct ps_row_spec {
    char name[PS_ROW_NAME_BYTES]; // the user's; for messages and files
    uint32_t number; // of the table in the job, from 0; initial rows depend on it
    uint32_t dim;    // float32 in a row of weights
    ps_row_optimizer optimizer;
    double lr, eps, beta1, beta2, lr_decay, initial_accumulator;
    ps_row_init init;
    double init_scale;
    uint64_t seed;
    /* Bound of the whole table, over all shards; 0: none. Counts rows, their state, and
     * 27 bytes of index each. It holds for each of the PS_ROW_PARTITIONS by itself, so
     * that what is evicted does not depend on the number of shards. */
    uint64_t max_bytes;
    ps_row_full full;
    uint32_t admit;  // an id gets a row in the admit-th step that has a gradient for it;
                     // before, its gradients are dropped; 0, 1: in the first
    uint32_t expire; // a row without a gradient for that many steps, or up to a quarter
                     // more (each partition has steps of its own at which it is looked
                     // through), begins anew; 0: never
    ps_codec codec;  // of rows and gradients that travel (row_codec.h)
} ps_row_spec;

/* PyTorch's defaults for the optimizer, FBGEMM's for ROWWISE_ADAGRAD (lr 0.01, SGD and
 * SparseAdam 0.001; eps 1e-8, Adagrad 1e-10; betas 0.9, 0.999), uniform initial rows of
 * scale 0.01, no bound, no admission, no expiry. */
ps_row_spec ps_row_spec_default(ps_row_optimizer optimizer);

/* ARG names the table, the setting and its mend: no name or one that is too long, dim 0
 * or above PS_ROW_DIM_MAX, numbers that are negative or not finite, betas outside [0, 1),
 * a bound under one row a partition, eviction without a bound. */
ps_err ps_row_spec_check(const ps_row_spec *spec);

/* Of all settings: equal on every rank, or their specs differ. */
uint64_t ps_row_spec_hash(const ps_row_spec *spec);

/* The first setting that differs, as "dim: 16 and 32", or "" when none does. Returns out.
 */
const char *ps_row_spec_difference(const ps_row_spec *a, const ps_row_spec *b, char *out,
                                   size_t bytes);

/* As a MessagePack map. Reading checks it too; PROTOCOL or ARG begins with `what`. */
void ps_row_spec_write(ps_mp_writer *w, const ps_row_spec *spec);
ps_err ps_row_spec_read(const void *value, size_t bytes, const char *what,
                        ps_row_spec *spec);

/* float32 that a stored row has: dim weights, then the optimizer's state. */
uint32_t ps_row_spec_width(const ps_row_spec *spec);

/* Bytes that a row counts for max_bytes: width float32 and PS_ROW_INDEX_BYTES. */
uint64_t ps_row_spec_row_bytes(const ps_row_spec *spec);

/* Of a table. */
typedef struct ps_row_clock {
    uint64_t made;  // steps of its optimizer
    uint64_t ahead; // its versions are steps of the job and that many: of rows that came
                    // from another job, with their ages; modulo 2^64
} ps_row_clock;

#endif
