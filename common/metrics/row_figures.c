#include "row_figures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

ps_err ps_row_figures_init(ps_row_figures *f)
{
    *f = (ps_row_figures){0};
    return pthread_mutex_init(&f->lock, NULL) == 0
               ? PS_OK
               : ps_err_set(PS_ERR_NOMEM, "no memory for a lock");
}

void ps_row_figures_fini(ps_row_figures *f)
{
    free(f->of);
    pthread_mutex_destroy(&f->lock);
}

ps_err ps_row_figures_begin(ps_row_figures *f, const ps_row_spec *specs, uint32_t n)
{
    ps_row_figure *of, *before;
    PS_TRY(ps_mem_zalloc(&of, n, sizeof *of, "figures of tables"));
    for (uint32_t t = 0; t < n; t++)
        snprintf(of[t].name, sizeof of[t].name, "%s", specs[t].name);
    pthread_mutex_lock(&f->lock);
    before = f->of;
    f->of = of;
    f->n = n;
    pthread_mutex_unlock(&f->lock);
    free(before);
    return PS_OK;
}

void ps_row_figures_count(ps_row_figures *f, uint32_t table, const ps_row_figure *now)
{
    pthread_mutex_lock(&f->lock);
    ps_row_figure *of = &f->of[table];
    of->rows = now->rows;
    of->bytes = now->bytes;
    of->stepped += now->stepped;
    of->dropped += now->dropped;
    pthread_mutex_unlock(&f->lock);
}

static ps_err row_figures_grow(ps_row_figure_list *list, uint32_t n)
{
    if (n <= list->n) return PS_OK;
    ps_row_figure *more = realloc(list->of, n * sizeof *more);
    if (!more) return ps_err_set(PS_ERR_NOMEM, "no memory for figures of tables");
    memset(more + list->n, 0, (n - list->n) * sizeof *more);
    *list = (ps_row_figure_list){more, n};
    return PS_OK;
}

ps_err ps_row_figures_add(ps_row_figures *f, ps_row_figure_list *list)
{
    pthread_mutex_lock(&f->lock);
    const ps_err err = row_figures_grow(list, f->n);
    for (uint32_t t = 0; err == PS_OK && t < f->n; t++) {
        memcpy(list->of[t].name, f->of[t].name, sizeof f->of[t].name);
        list->of[t].rows += f->of[t].rows;
        list->of[t].bytes += f->of[t].bytes;
        list->of[t].stepped += f->of[t].stepped;
        list->of[t].dropped += f->of[t].dropped;
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}
