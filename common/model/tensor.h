/* Named views into an arena. */
#ifndef PS_TENSOR_H
#define PS_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PS_MAX_DIMS = 4,
    PS_TENSOR_ALIGN = 16,    // elements: every tensor starts at a multiple of 64 bytes
    PS_GRADNORM_BLOCK = 4096 // elements: see plan.h and gradnorm.h
};

typedef struct ps_dims {
    int n;                  // 0 .. PS_MAX_DIMS
    int64_t d[PS_MAX_DIMS]; // row-major
} ps_dims;

static inline int64_t ps_dims_count(const ps_dims *dims)
{
    int64_t count = 1;
    for (int i = 0; i < dims->n; i++)
        count *= dims->d[i];
    return count;
}

enum { PS_DIMS_TEXT = 96 };

/* "(64, 12, 12)", for messages; returns out. */
const char *ps_dims_text(const ps_dims *dims, char out[PS_DIMS_TEXT]);
/* "32 x 26 x 26", for reports; returns out. */
const char *ps_dims_product_text(const ps_dims *dims, char out[PS_DIMS_TEXT]);

bool ps_dims_equal(const ps_dims *a, const ps_dims *b);

/* The product of the dimensions, or -1 where one is negative or the product above max. */
int64_t ps_dims_count_max(const ps_dims *dims, int64_t max);

typedef enum ps_tensor_role {
    PS_TENSOR_WEIGHT,
    PS_TENSOR_BIAS,
    PS_TENSOR_BATCHNORM, // weight or bias of a normalisation layer
    PS_TENSOR_BUFFER,    // float32, not trained: running mean and variance
    PS_TENSOR_COUNTER    // int64, one element: num_batches_tracked
} ps_tensor_role;

typedef struct ps_tensor {
    char *name; // PyTorch's: "layer1.0.conv1.weight"; owned by the model
    ps_dims dims;
    ps_tensor_role role;
    int group;      // of parameters with numbers of their own (optimizer.h); 0: the first
    int owner;      // which of a program's optimizers steps it; 0: the first
    int64_t fan_in; // of the layer (initialisation)
    /* Parameters: elements from the start of the parameter (or gradient) arena, a
     * multiple of PS_TENSOR_ALIGN. Buffers and counters: bytes from the start of the
     * buffer arena, a multiple of 64. The gaps are zero and stay zero. */
    uint64_t offset;
    uint64_t count; // elements
} ps_tensor;

#endif
