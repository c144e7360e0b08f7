/* The tensors of a job: the parameters, which are trained, in the order of registration,
 * and the buffers, which only travel beside them.
 *
 * The table is all that the plan, codecs, shards and exchanges know of a model. A model
 * (model_spec.h) fills it from its layers; without one, ps_tensor_table_add does.
 */
#ifndef PS_TENSOR_TABLE_H
#define PS_TENSOR_TABLE_H

#include "err.h"
#include "tensor.h"

/* Elements that an arena may have: products of bytes and of chunks stay far from 2^64. */
#define PS_ARENA_COUNT_MAX ((int64_t)1 << 40)

typedef struct ps_tensor_table {
    /* Parameters in the order of registration (a layer's weight, then its bias). */
    int n_tensors;
    ps_tensor *tensors;   // owned
    uint64_t arena_count; // elements of the parameter arena, gaps included
    uint64_t n_params;    // elements without gaps
    int n_buffers;
    ps_tensor *buffers;    // owned
    uint64_t buffer_bytes; // of the buffer arena
    /* The last n_frozen buffers are parameters that are not trained. They take the last
     * frozen_bytes of the buffer arena, and never change after a job's start. */
    int n_frozen;
    uint64_t frozen_bytes;
    char *preprocessing; // of samples (worker), as a text that files of these tensors
                         // carry; owned; NULL: none
    const char *samples; // their type, "uint8" or "float32", for these files, too; a
                         // constant; NULL: not known
    bool optional;       // parameters may lack a gradient in a step (absent.h)
    uint32_t tensors_room, buffers_room;
} ps_tensor_table;

/* Registers a parameter after the others; name is copied; *index: its place. role is not
 * that of a buffer. dims has at least one element. CONFIG: all of them have too many.
 * NOMEM. After an error the table is as before. */
ps_err ps_tensor_table_add(ps_tensor_table *table, const char *name, ps_dims dims,
                           ps_tensor_role role, int64_t fan_in, int *index);
/* The same for a buffer or counter: *index into buffers. */
ps_err ps_tensor_table_add_buffer(ps_tensor_table *table, const char *name, ps_dims dims,
                                  ps_tensor_role role, int *index);
/* Safe for a zeroed table. */
void ps_tensor_table_fini(ps_tensor_table *table);

/* The elements [*begin, *end) of the arena from parameter `first` to the end of the last
 * of n; n is at least 1. */
void ps_tensor_table_range(const ps_tensor_table *table, int first, int n,
                           uint64_t *begin, uint64_t *end);

/* Entry i of the parameters and, after these, the buffers. */
const ps_tensor *ps_tensor_table_at(const ps_tensor_table *table, int i);
/* Whether entry i, of that order, is a parameter that is trained; false for one below 0.
 */
static inline bool ps_tensor_table_trains(const ps_tensor_table *table, int i)
{
    return i >= 0 && i < table->n_tensors;
}

/* The parameter or buffer of that name, or NULL. */
const ps_tensor *ps_tensor_table_find(const ps_tensor_table *table, const char *name);

#endif
