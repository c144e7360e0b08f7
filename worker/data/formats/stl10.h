/* STL-10 binary files, plain or gzip, without headers.
 *
 *   X   images of 3 x 96 x 96 bytes: red, green, blue, each column by column
 *   y   labels of one byte, 1 .. 10
 *
 * The reader converts images to (3, 96, 96) in row-major order, and labels to 0 .. 9.
 * Source: https://cs.stanford.edu/~acoates/stl10/ */
#ifndef PS_STL10_H
#define PS_STL10_H

#include "data_files.h"
#include "samples.h"

/* paths[0]: X, paths[1]: y, the same number of each. FORMAT; out is zeroed on failure. */
ps_err ps_stl10_read(char *const *paths, int n_paths, ps_dataset *out);

#endif
