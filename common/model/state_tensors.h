/* A job's state as named tensors, written to safetensors files and read back. An array
 * with the layout of the parameter arena becomes one tensor for each of the model's. So a
 * job with other chunks and shards can read it, and PyTorch can. */
#ifndef PS_STATE_TENSORS_H
#define PS_STATE_TENSORS_H

#include "safetensors.h"

typedef struct ps_state_tensors {
    int n;
    uint32_t room;
    ps_st_tensor *list; // owned, names too; the values are borrowed
} ps_state_tensors;

/* One tensor of float32. NOMEM. */
ps_err ps_state_tensors_add(ps_state_tensors *s, const char *name, ps_dims dims,
                            const float *values);
/* "<tensor>.<what>" for each of the model's, with its values in the arena. NOMEM. */
ps_err ps_state_tensors_add_arena(ps_state_tensors *s, const ps_tensor_table *table,
                                  const char *what, const float *arena);
/* Safe for a zeroed one. */
void ps_state_tensors_fini(ps_state_tensors *s);

/* Fills the arena from such tensors of a file; gaps stay as they are. FORMAT names path
 * and tensor where one is missing or has another shape or dtype. */
ps_err ps_state_tensors_read(const char *path, const ps_st_file *file,
                             const ps_tensor_table *table, const char *what,
                             float *arena);

#endif
