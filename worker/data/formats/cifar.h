/* CIFAR-10 and CIFAR-100 binary files, plain or gzip: records without a header.
 *
 *   CIFAR-10    label (1)                        pixels (3072)
 *   CIFAR-100   coarse label (1), fine label (1) pixels (3072)
 *
 * Pixels are (3, 32, 32): the red plane row by row, then green, then blue. Of CIFAR-100,
 * the fine labels are used. Source: https://www.cs.toronto.edu/~kriz/cifar.html */
#ifndef PS_CIFAR_H
#define PS_CIFAR_H

#include "data_files.h"
#include "samples.h"

/* Reads the files one after the other. FORMAT when a file's size is not a multiple of the
 * record size, or a label is out of range. out is zeroed on failure. */
ps_err ps_cifar10_read(char *const *paths, int n_paths, ps_dataset *out);
ps_err ps_cifar100_read(char *const *paths, int n_paths, ps_dataset *out);

#endif
