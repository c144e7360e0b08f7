#include "state_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

ps_err ps_state_tensors_add(ps_state_tensors *s, const char *name, ps_dims dims,
                            const float *values)
{
    PS_TRY(ps_mem_room(&s->list, (uint32_t)s->n, &s->room, sizeof *s->list, "tensors"));
    ps_st_tensor t = {.dtype = "F32",
                      .dims = dims,
                      .data = values,
                      .bytes = (uint64_t)ps_dims_count(&dims) * sizeof *values};
    PS_TRY(ps_mem_strdup(&t.name, name));
    s->list[s->n++] = t;
    return PS_OK;
}

/* *out: "<tensor>.<what>", owned. */
static ps_err join_name(const ps_tensor *t, const char *what, char **out)
{
    size_t room = strlen(t->name) + strlen(what) + 2;
    PS_TRY(ps_mem_zalloc(out, room, 1, "a tensor's name"));
    snprintf(*out, room, "%s.%s", t->name, what);
    return PS_OK;
}

ps_err ps_state_tensors_add_arena(ps_state_tensors *s, const ps_tensor_table *table,
                                  const char *what, const float *arena)
{
    for (int i = 0; i < table->n_tensors; i++) {
        const ps_tensor *t = &table->tensors[i];
        char *name;
        PS_TRY(join_name(t, what, &name));
        ps_err err = ps_state_tensors_add(s, name, t->dims, arena + t->offset);
        free(name);
        PS_TRY(err);
    }
    return PS_OK;
}

void ps_state_tensors_fini(ps_state_tensors *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->list[i].name);
    free(s->list);
    *s = (ps_state_tensors){0};
}

static ps_err state_read_tensor(const char *path, const ps_st_file *file,
                                const ps_tensor *t, const char *name, float *values)
{
    const ps_st_tensor *found = ps_st_find(file, name);
    if (!found) return ps_err_set(PS_ERR_FORMAT, "%s: %s is missing", path, name);
    if (strcmp(found->dtype, "F32") != 0 || !ps_dims_equal(&found->dims, &t->dims))
        return ps_err_set(PS_ERR_FORMAT, "%s: %s does not have the shape of %s", path,
                          name, t->name);
    memcpy(values, found->data, t->count * sizeof *values);
    return PS_OK;
}

ps_err ps_state_tensors_read(const char *path, const ps_st_file *file,
                             const ps_tensor_table *table, const char *what, float *arena)
{
    for (int i = 0; i < table->n_tensors; i++) {
        const ps_tensor *t = &table->tensors[i];
        char *name;
        PS_TRY(join_name(t, what, &name));
        ps_err err = state_read_tensor(path, file, t, name, arena + t->offset);
        free(name);
        PS_TRY(err);
    }
    return PS_OK;
}
