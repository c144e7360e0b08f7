/* A model's weights and buffers as a safetensors file, under PyTorch's names. */
#ifndef PS_MODEL_FILE_H
#define PS_MODEL_FILE_H

#include "safetensors.h"

/* The key of the table's preprocessing in a file's metadata. */
#define PS_PREPROCESSING_KEY "preprocessing"
/* That of the type of the training samples. */
#define PS_SAMPLES_KEY "samples"

/* Writes params (the arena) and buffers (the buffer arena) as ps_st_save does, with the
 * table's preprocessing and samples as further pairs of metadata. */
ps_err ps_model_file_save(const char *path, const ps_tensor_table *table,
                          const float *params, const void *buffers,
                          const char *const *metadata, int n_meta);

/* Fills params and buffers from the file. F16 and BF16 become float32, exactly; F64 is
 * rounded to it. Counters may be integers of any size.
 * strict: every tensor of the model has to be there with its shape, and no other, and the
 * same preprocessing where both have one; FORMAT names the first that does not fit. Else
 * what fits is taken, everything else keeps its value, and the log says which tensors
 * that are; FORMAT if nothing fits. */
ps_err ps_model_file_load(const char *path, const ps_tensor_table *table, bool strict,
                          float *params, void *buffers);

#endif
