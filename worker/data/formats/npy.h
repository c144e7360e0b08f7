/* NumPy's .npy files, plain or gzip, for users' own data.
 *
 *   offset  size      content
 *   0       6         0x93 "NUMPY"
 *   6       2         version: 1.0, 2.0 or 3.0
 *   8       2 or 4    size of the header H, little-endian (4 from version 2 on)
 *   ...     H         "{'descr': '<f4', 'fortran_order': False, 'shape': (10, 3), }"
 *   ...     ...       values, row-major
 *
 * Source: numpy.lib.format's documentation. */
#ifndef PS_NPY_H
#define PS_NPY_H

#include "data_files.h"
#include "samples.h"

enum { PS_NPY_MAX_DIMS = 8 };

typedef struct ps_npy_header {
    char order;     // '<', '>', '|' or '='
    char name[15];  // of the type: "f4", "U10", "O"
    char type;      // 'u', 'i', 'f', 'b', ...: the name's first character
    int item_bytes; // 1, 2, 4 or 8 for the types above; 0: no number follows
    bool fortran_order;
    int n_dims;
    int64_t shape[PS_NPY_MAX_DIMS];
} ps_npy_header;

/* Samples: |u1, <f4 or <f8 (converted to float32), shape (N), (N, F), (N, H, W) or
 * (N, C, H, W). Sets all but labels. FORMAT, UNSUPPORTED for another type or order. */
ps_err ps_npy_read_values(ps_source *source, ps_dataset *set);

/* The same, but the samples stay in their file: sets stream instead of values.
 * UNSUPPORTED also when the file is compressed. */
ps_err ps_npy_open_values(ps_source *source, ps_dataset *set);

/* What samples are compared with, into set->labels or set->targets: labels, which are
 * integers of any size, shape (N) or (N, 1), each within int32; or numbers
 * (wanted->numbers): <f4, <f8, |b1 or integers, shape (N) or (N, wanted->n). For a model
 * with several outputs, integers of shape (N) are labels. *n: the number of samples.
 * FORMAT, UNSUPPORTED, NUMERIC name the file and the sample. */
ps_err ps_npy_read_answers(ps_source *source, const ps_wanted *wanted, ps_dataset *set,
                           int64_t *n);

/* paths[0]: x, paths[1]: y, the same number of each. out is zeroed on failure. */
ps_err ps_npy_read(char *const *paths, int n_paths, const ps_wanted *wanted,
                   ps_dataset *out);

/* The same, but x stays in its file. */
ps_err ps_npy_open(char *const *paths, int n_paths, const ps_wanted *wanted,
                   ps_dataset *out);

#endif
