#include "warm_up.h"

#include <stdlib.h>

#include "mem.h"
#include "thread.h"

/* The largest of the rank's, or of any rank's. */
static int max_batch(const ps_warm_up *w)
{
    int64_t sizes[PS_MAX_RANKS], most = 0;
    ps_config_split(w->config, w->workers, sizes);
    for (int r = 0; r < w->workers; r++)
        if ((w->rank < 0 || w->rank == r) && sizes[r] > most) most = sizes[r];
    return (int)most;
}

/* What fails here fails again, and is reported, where the program is made for good. */
static void make_program(const ps_warm_up *w)
{
    static const char what[] = "a warm-up";
    const ps_tensor_table *table = &w->program.spec->table;
    const size_t bytes = table->arena_count * sizeof(float);
    ps_program_options o = w->program;
    ps_program *program = NULL;
    o.max_batch = max_batch(w);
    ps_err err = ps_mem_zalloc_large(&o.params, bytes, what);
    if (err == PS_OK) err = ps_mem_zalloc_large(&o.grads, bytes, what);
    if (err == PS_OK) err = ps_mem_zalloc(&o.buffers, table->buffer_bytes + 1, 1, what);
    if (err == PS_OK) err = ps_program_create(w->device, &o, &program);
    ps_program_destroy(&program);
    free(o.params);
    free(o.grads);
    free(o.buffers);
}

static void *make_ahead(void *arg)
{
    ps_warm_up *w = arg;
    const ps_device_kind kind = w->config->train.device.kind;
    if (ps_device_open(kind, &w->options, &w->device) == PS_OK) make_program(w);
    return NULL;
}

ps_err ps_warm_up_begin(ps_warm_up *w)
{
    if (w->config->train.epochs == 0) return PS_OK;
    return ps_thread_start(&w->thread, "warm-up", make_ahead, w);
}

ps_device *ps_warm_up_end(ps_warm_up *w)
{
    ps_thread_join(&w->thread);
    ps_device *device = w->device;
    w->device = NULL;
    return device;
}
