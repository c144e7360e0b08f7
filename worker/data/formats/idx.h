/* IDX files (MNIST's), plain or gzip.
 *
 *   offset  size      content, big-endian
 *   0       2         0
 *   2       1         type: 0x08 uint8, 0x0D float32
 *   3       1         number of dimensions, D
 *   4       4 x D     sizes, the samples first
 *   4 + 4D  ...       values, row-major
 *
 * Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database", file formats.
 */
#ifndef PS_IDX_H
#define PS_IDX_H

#include "data_files.h"
#include "samples.h"

/* Reads the images (or vectors) of an open file: (N, F), (N, H, W) as one channel, or
 * (N, C, H, W). Sets all but labels. FORMAT or NOMEM. */
ps_err ps_idx_read_values(ps_source *source, ps_dataset *set);

/* Reads labels: one dimension of uint8; *labels (*n) owned by the caller. */
ps_err ps_idx_read_labels(ps_source *source, int32_t **labels, int64_t *n);

/* paths[0]: values, paths[1]: labels, the same number of each. out is zeroed on failure.
 */
ps_err ps_idx_read(char *const *paths, int n_paths, ps_dataset *out);

#endif
