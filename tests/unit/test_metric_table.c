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
    ps_metric_values_init(&values);
    ps_metric_set(&values, PS_METRIC_STEP_MS, 250);
    ps_metric_set(&values, PS_METRIC_LOSS, INFINITY);
    ps_metric_set(NULL, PS_METRIC_LOSS, 1); // no table: nothing happens
    ps_metric_copy(&values, copy);
    assert_ok(ps_metric_text(copy, &labels, &text));
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
