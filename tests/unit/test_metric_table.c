/* The table of metrics, and its text for Prometheus. */
#include <ctype.h>
#include <math.h>

#include "check.h"
#include "metric_text.h"

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

TEST(names_follow_the_rules)
{
    for (int i = 0; i < PS_METRICS; i++) {
        const ps_metric_entry *e = &ps_metric_table[i];
        for (const char *c = e->export_name; *c; c++)
            assert_true(islower(*c) || isdigit(*c) || *c == '_');
        assert_int_equal(ends_with(e->export_name, "_total"),
                         e->kind == PS_METRIC_COUNTER);
        assert_true(strlen(e->help) > 0);
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(ps_metric_table[k].name, e->name);
            assert_string_not_equal(ps_metric_table[k].export_name, e->export_name);
        }
    }
}

TEST(text_has_known_values_only)
{
    ps_metric_values values;
    double copy[PS_METRICS];
    char *text;
    const ps_metric_labels labels = {.job = "a \"b\"\\\n", .role = "worker", .rank = 3};
    const ps_row_figure_list tables = {0};
    ps_metric_values_init(&values);
    ps_metric_set(&values, PS_METRIC_STEP_MS, 250);
    ps_metric_set(&values, PS_METRIC_LOSS, INFINITY);
    ps_metric_set(NULL, PS_METRIC_LOSS, 1); // no table: nothing happens
    ps_metric_copy(&values, copy);
    assert_ok(ps_metric_text(copy, &tables, &labels, &text));
    assert_non_null(strstr(
        text,
        "\n# TYPE pstrain_step_duration_seconds gauge\n"
        "pstrain_step_duration_seconds{job_name=\"a \\\"b\\\"\\\\\\n\",role=\"worker\","
        "rank=\"3\"} 0.25\n"));
    assert_non_null(strstr(text, "pstrain_loss{"));
    assert_non_null(strstr(text, "} inf\n"));
    assert_null(strstr(text, "pstrain_steps_total"));
    assert_null(strstr(text, "nan"));
    free(text);
}

/* A table's figures are those of all shards; the text names each table. */
TEST(figures_of_tables)
{
    const ps_row_spec specs[] = {{.name = "user"}, {.name = "item"}};
    const ps_metric_labels labels = {.job = "job", .role = "server", .rank = 0};
    const uint64_t now[][PS_ROW_FIGURES] = {{5, 40, 3, 1, 9, 7}, {4, 32, 2, 2, 1, 0}};
    ps_row_figures shards[2];
    ps_row_figure_list tables = {0};
    double values[PS_METRICS];
    char *text;
    for (int i = 0; i < PS_METRICS; i++)
        values[i] = NAN;
    for (int i = 0; i < 2; i++) {
        assert_ok(ps_row_figures_init(&shards[i]));
        assert_ok(ps_row_figures_begin(&shards[i], specs, 2));
        ps_row_figures_count(&shards[i], 1, now[0]);
        ps_row_figures_count(&shards[i], 1, now[1]);
        assert_ok(ps_row_figures_add(&shards[i], &tables));
        ps_row_figures_fini(&shards[i]);
    }
    assert_ok(ps_metric_text(values, &tables, &labels, &text));
    const char *const lines[] = {"rows{%s\"user\"} 0\n",
                                 "rows{%s\"item\"} 8\n",
                                 "bytes{%s\"item\"} 64\n",
                                 "rows_stepped_total{%s\"item\"} 10\n",
                                 "rows_dropped_total{%s\"item\"} 6\n",
                                 "rows_ahead_total{%s\"item\"} 20\n",
                                 "rows_ready_total{%s\"item\"} 14\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char rest[160], line[192];
        const char *const at = "job_name=\"job\",role=\"server\",rank=\"0\",table=";
        const char *brace = strstr(lines[i], "%s");
        snprintf(rest, sizeof rest, "%.*s%s%s", (int)(brace - lines[i]), lines[i], at,
                 brace + 2);
        snprintf(line, sizeof line, "\npstrain_table_%s", rest);
        if (!strstr(text, line)) fail_msg("no %s in %s", line, text);
    }
    assert_null(strstr(text, "pstrain_rows"));
    free(text);
    free(tables.tables);
}
