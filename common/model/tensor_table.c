#include "tensor_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* Makes a new entry at the end of list (n of *room used), not counted yet. */
static ps_err new_entry(ps_tensor **list, int n, uint32_t *room, const char *name,
                        ps_tensor **out)
{
    PS_TRY(ps_mem_room(list, (uint32_t)n, room, sizeof **list, "the tensor table"));
    *out = *list + n;
    **out = (ps_tensor){0};
    PS_TRY(ps_mem_zalloc(&(*out)->name, strlen(name) + 1, 1, "a tensor's name"));
    memcpy((*out)->name, name, strlen(name));
    return PS_OK;
}

/* used: elements before it. */
static ps_err check_room(uint64_t used, const char *name, const ps_dims *dims)
{
    char text[PS_DIMS_TEXT];
    const int64_t left = PS_ARENA_COUNT_MAX - (int64_t)used;
    if (ps_dims_count_max(dims, left) >= 0) return PS_OK;
    return ps_err_set(PS_ERR_CONFIG,
                      "%.200s %s: too many elements, of which all tensors together may "
                      "have %" PRId64,
                      name, ps_dims_text(dims, text), PS_ARENA_COUNT_MAX);
}

ps_err ps_tensor_table_add(ps_tensor_table *table, const char *name, ps_dims dims,
                           ps_tensor_role role, int64_t fan_in, int *index)
{
    ps_tensor *t;
    PS_TRY(check_room(table->arena_count, name, &dims));
    PS_TRY(new_entry(&table->tensors, table->n_tensors, &table->tensors_room, name, &t));
    t->dims = dims;
    t->role = role;
    t->fan_in = fan_in;
    t->offset = table->arena_count;
    t->count = (uint64_t)ps_dims_count(&dims);
    *index = table->n_tensors++;
    table->n_params += t->count;
    table->arena_count +=
        (t->count + PS_TENSOR_ALIGN - 1) / PS_TENSOR_ALIGN * PS_TENSOR_ALIGN;
    return PS_OK;
}

ps_err ps_tensor_table_add_buffer(ps_tensor_table *table, const char *name, ps_dims dims,
                                  ps_tensor_role role, int *index)
{
    ps_tensor *t;
    PS_TRY(check_room(table->buffer_bytes / sizeof(float), name, &dims));
    PS_TRY(new_entry(&table->buffers, table->n_buffers, &table->buffers_room, name, &t));
    t->dims = dims;
    t->role = role;
    t->offset = table->buffer_bytes;
    t->count = (uint64_t)ps_dims_count(&dims);
    *index = table->n_buffers++;
    const uint64_t bytes = t->count * (role == PS_TENSOR_COUNTER ? 8 : 4);
    table->buffer_bytes += (bytes + 63) / 64 * 64;
    return PS_OK;
}

void ps_tensor_table_fini(ps_tensor_table *table)
{
    for (int i = 0; i < table->n_tensors; i++)
        free(table->tensors[i].name);
    for (int i = 0; i < table->n_buffers; i++)
        free(table->buffers[i].name);
    free(table->tensors);
    free(table->buffers);
    free(table->preprocessing);
    *table = (ps_tensor_table){0};
}

void ps_tensor_table_range(const ps_tensor_table *table, int first, int n,
                           uint64_t *begin, uint64_t *end)
{
    const ps_tensor *last = &table->tensors[first + n - 1];
    *begin = table->tensors[first].offset;
    *end = last->offset + last->count;
}

const ps_tensor *ps_tensor_table_at(const ps_tensor_table *table, int i)
{
    return i < table->n_tensors ? &table->tensors[i]
                                : &table->buffers[i - table->n_tensors];
}

const ps_tensor *ps_tensor_table_find(const ps_tensor_table *table, const char *name)
{
    for (int i = 0; i < table->n_tensors; i++)
        if (strcmp(table->tensors[i].name, name) == 0) return &table->tensors[i];
    for (int i = 0; i < table->n_buffers; i++)
        if (strcmp(table->buffers[i].name, name) == 0) return &table->buffers[i];
    return NULL;
}
