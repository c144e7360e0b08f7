#include "row_figures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

const ps_metric_entry ps_row_figure_table[PS_ROW_FIGURES] = {
#define PS_ROW_FIGURE_ENTRY(id, name, export, kind, unit, help)                          \
    {name, "pstrain_table_" export, 1, PS_METRIC_##kind, unit, help},
    PS_ROW_FIGURE_MAP(PS_ROW_FIGURE_ENTRY)
#undef PS_ROW_FIGURE_ENTRY
};

ps_err ps_row_figures_init(ps_row_figures *f)
{
    *f = (ps_row_figures){0};
    return pthread_mutex_init(&f->lock, NULL) == 0
               ? PS_OK
               : ps_err_set(PS_ERR_NOMEM, "no memory for a lock");
}

void ps_row_figures_fini(ps_row_figures *f)
{
    free(f->tables);
    pthread_mutex_destroy(&f->lock);
}

ps_err ps_row_figures_begin(ps_row_figures *f, const ps_row_spec *specs, uint32_t n)
{
    ps_row_figure *of, *before;
    PS_TRY(PS_NEW(&of, n, "figures of tables"));
    for (uint32_t t = 0; t < n; t++)
        snprintf(of[t].name, sizeof of[t].name, "%s", specs[t].name);
    pthread_mutex_lock(&f->lock);
    before = f->tables;
    f->tables = of;
    f->n = n;
    pthread_mutex_unlock(&f->lock);
    free(before);
    return PS_OK;
}

void ps_row_figures_count(ps_row_figures *f, uint32_t table,
                          const uint64_t now[PS_ROW_FIGURES])
{
    pthread_mutex_lock(&f->lock);
    uint64_t *of = f->tables[table].of;
    for (int k = 0; k < PS_ROW_FIGURES; k++)
        of[k] = now[k] + (ps_row_figure_table[k].kind == PS_METRIC_COUNTER ? of[k] : 0);
    pthread_mutex_unlock(&f->lock);
}

ps_err ps_row_figure_list_grow(ps_row_figure_list *list, uint32_t n)
{
    if (n <= list->n) return PS_OK;
    ps_row_figure *more = realloc(list->tables, n * sizeof *more);
    if (!more) return ps_err_set(PS_ERR_NOMEM, "no memory for figures of tables");
    memset(more + list->n, 0, (n - list->n) * sizeof *more);
    *list = (ps_row_figure_list){more, n};
    return PS_OK;
}

ps_err ps_row_figures_add(ps_row_figures *f, ps_row_figure_list *list)
{
    pthread_mutex_lock(&f->lock);
    const ps_err err = ps_row_figure_list_grow(list, f->n);
    for (uint32_t t = 0; err == PS_OK && t < f->n; t++) {
        memcpy(list->tables[t].name, f->tables[t].name, sizeof f->tables[t].name);
        for (int k = 0; k < PS_ROW_FIGURES; k++)
            list->tables[t].of[k] += f->tables[t].of[k];
    }
    pthread_mutex_unlock(&f->lock);
    return err;
}

json_t *ps_row_figure_list_json(const ps_row_figure_list *list)
{
    json_t *out = json_array();
    for (uint32_t t = 0; t < list->n; t++) {
        json_t *one = json_pack("{s:s}", "name", list->tables[t].name);
        for (int k = 0; k < PS_ROW_FIGURES; k++)
            json_object_set_new(one, ps_row_figure_table[k].name,
                                json_integer((json_int_t)list->tables[t].of[k]));
        json_array_append_new(out, one);
    }
    return out;
}
