/* CIFAR-10 and CIFAR-100 binary files, plain or gzip: records without a header.
 *
 *   CIFAR-10    label (1)                        pixels (3072)
 *   CIFAR-100   coarse label (1), fine label (1) pixels (3072)
 *
 * Pixels are 32 x 32: all red ones row by row, then green, then blue: (3, 32, 32). The
 * fine labels are taken. Source: https://www.cs.toronto.edu/~kriz/cifar.html
 */
#ifndef PS_CIFAR_H
#define PS_CIFAR_H

#include "data_files.h"
#include "samples.h"

/* Reads the files one behind the other. FORMAT when a size is no multiple of a record, or
 * a label is not of the kind. out is zeroed on failure. */
ps_err ps_cifar10_read(char *const *paths, int n_paths, ps_dataset *out);
ps_err ps_cifar100_read(char *const *paths, int n_paths, ps_dataset *out);

#endif
