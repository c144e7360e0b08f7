#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *ps_dims_product_text(const ps_dims *dims, char out[PS_DIMS_TEXT])
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < dims->n && used < PS_DIMS_TEXT; i++)
        used += (size_t)snprintf(out + used, PS_DIMS_TEXT - used, "%s%" PRId64,
                                 i ? " x " : "", dims->d[i]);
    return out;
}

const char *ps_dims_text(const ps_dims *dims, char out[PS_DIMS_TEXT])
{
    size_t used = 0;
    out[used++] = '(';
    for (int i = 0; i < dims->n; i++)
        used += (size_t)snprintf(out + used, PS_DIMS_TEXT - used, "%s%lld", i ? ", " : "",
                                 (long long)dims->d[i]);
    memcpy(out + used, ")", 2); // four numbers of 20 digits leave room for it
    return out;
}

bool ps_dims_equal(const ps_dims *a, const ps_dims *b)
{
    if (a->n != b->n) return false;
    for (int i = 0; i < a->n; i++)
        if (a->d[i] != b->d[i]) return false;
    return true;
}

int64_t ps_dims_count_max(const ps_dims *dims, int64_t max)
{
    int64_t count = 1;
    for (int i = 0; i < dims->n; i++)
        if (dims->d[i] < 0 || __builtin_mul_overflow(count, dims->d[i], &count))
            return -1;
    return count > max ? -1 : count;
}
