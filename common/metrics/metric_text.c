#include "metric_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A label's value: backslash, quote and newline are escaped; other control characters
 * become spaces. */
static void write_label(FILE *f, const char *name, const char *value)
{
    fprintf(f, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if (*c == '\\' || *c == '"')
            fprintf(f, "\\%c", *c);
        else if (*c == '\n')
            fputs("\\n", f);
        else
            fputc((unsigned char)*c < 0x20 ? ' ' : *c, f);
    }
    fputc('"', f);
}

/* table: NULL: of the process. */
static void write_labels(FILE *f, const ps_metric_labels *l, const char *table)
{
    fputc('{', f);
    write_label(f, "job_name", l->job);
    fputc(',', f);
    write_label(f, "role", l->role);
    fprintf(f, ",rank=\"%d\"", l->rank);
    if (table) {
        fputc(',', f);
        write_label(f, "table", table);
    }
    fputc('}', f);
}

static void write_kind(FILE *f, const ps_metric_entry *e)
{
    fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", e->export_name, e->help, e->export_name,
            e->kind == PS_METRIC_COUNTER ? "counter" : "gauge");
}

static void write_metric(FILE *f, const ps_metric_entry *e, double value,
                         const ps_metric_labels *l)
{
    write_kind(f, e);
    fputs(e->export_name, f);
    write_labels(f, l, NULL);
    fprintf(f, " %.17g\n", value * e->factor);
}

static void write_tables(FILE *f, const ps_row_figure_list *tables,
                         const ps_metric_labels *l)
{
    for (int k = 0; tables->n > 0 && k < PS_ROW_FIGURES; k++) {
        write_kind(f, &ps_row_figure_table[k]);
        for (uint32_t t = 0; t < tables->n; t++) {
            fputs(ps_row_figure_table[k].export_name, f);
            write_labels(f, l, tables->tables[t].name);
            fprintf(f, " %" PRIu64 "\n", tables->tables[t].of[k]);
        }
    }
}

ps_err ps_metric_text(const double values[PS_METRICS], const ps_row_figure_list *tables,
                      const ps_metric_labels *labels, char **out)
{
    static const ps_metric_entry info = {.export_name = "pstrain_info",
                                         .factor = 1,
                                         .help = "1: this process is a part of the job"};
    size_t bytes;
    *out = NULL;
    FILE *f = open_memstream(out, &bytes);
    if (!f) return ps_err_set(PS_ERR_NOMEM, "no memory for the metrics");
    write_metric(f, &info, 1, labels);
    for (int i = 0; i < PS_METRICS; i++)
        if (!isnan(values[i])) write_metric(f, &ps_metric_table[i], values[i], labels);
    write_tables(f, tables, labels);
    const bool failed = ferror(f);
    if (fclose(f) == 0 && !failed) return PS_OK;
    free(*out);
    *out = NULL;
    return ps_err_set(PS_ERR_NOMEM, "no memory for the metrics");
}
