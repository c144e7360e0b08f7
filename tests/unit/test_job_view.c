/* What the coordinator's process knows of all members, and its JSON. */
#include <jansson.h>
#include <math.h>

#include "check.h"
#include "job_view_json.h"

static void take_tested(ps_job_view *view, int rank, double step, double loss,
                        double test_loss)
{
    double values[PS_METRICS];
    for (int i = 0; i < PS_METRICS; i++)
        values[i] = NAN;
    values[PS_METRIC_STEP] = step;
    values[PS_METRIC_LOSS] = loss;
    values[PS_METRIC_TEST_LOSS] = test_loss;
    ps_job_view_take(view, PS_ROLE_WORKER, rank, "127.0.0.1:1", values, PS_METRICS);
}

static void take(ps_job_view *view, int rank, double step, double loss)
{
    take_tested(view, rank, step, loss, NAN);
}

static ps_job_view *make_view(int workers)
{
    ps_job_view *view;
    assert_ok(ps_job_view_create("job", &view));
    ps_job_view_begin(view);
    ps_job_view_add(view, PS_ROLE_WORKER, 1, "b");
    ps_job_view_add(view, PS_ROLE_WORKER, 0, "a");
    ps_job_view_add(view, PS_ROLE_SERVER, 0, "s");
    for (int rank = 2; rank < workers; rank++)
        ps_job_view_add(view, PS_ROLE_WORKER, rank, "c");
    ps_job_view_set_state(view, PS_VIEW_RUNNING, "");
    return view;
}

TEST(a_curve_keeps_its_ends)
{
    ps_job_view *view = make_view(2);
    ps_job_picture picture;
    for (int step = 1; step <= 100000; step++)
        take(view, 0, step, 1.0 / step);
    assert_ok(ps_job_view_copy(view, &picture));
    assert_in_range(picture.n_points, PS_VIEW_POINTS / 2, PS_VIEW_POINTS);
    assert_true(picture.points[0].step < 1000);
    assert_true(picture.points[picture.n_points - 1].step > 99000);
    for (int i = 1; i < picture.n_points; i++)
        assert_true(picture.points[i].step > picture.points[i - 1].step);
    ps_job_picture_fini(&picture);
    // The job has gone back to a checkpoint. Steps that are made again replace the old
    // ones.
    take(view, 0, 50000, 2);
    for (int step = 50001; step < 51000; step++)
        take(view, 0, step, 2);
    assert_ok(ps_job_view_copy(view, &picture));
    assert_true(picture.points[picture.n_points - 1].step < 51000);
    ps_job_picture_fini(&picture);
    ps_job_view_destroy(&view);
}

static double last_test_loss(ps_job_view *view, double step)
{
    ps_job_picture picture;
    assert_ok(ps_job_view_copy(view, &picture));
    assert_true(picture.n_points > 0 && picture.n_points <= PS_VIEW_POINTS);
    const ps_view_point last = picture.points[picture.n_points - 1];
    assert_true(last.step == step);
    ps_job_picture_fini(&picture);
    return last.test_loss;
}

/* It comes after the last report of its step, however few reports are kept. */
TEST(an_evaluation_is_in_the_curve_of_its_step)
{
    ps_job_view *view = make_view(2);
    for (int step = 1; step <= 5000; step++) {
        take_tested(view, 0, step, 1, step - 1);
        assert_true(last_test_loss(view, step) == step - 1);
        for (int i = 0; i < 3; i++)
            take_tested(view, 0, step, 1, step);
        assert_true(last_test_loss(view, step) == step);
    }
    ps_job_view_destroy(&view);
}

static ps_view_wait waits(int n, const double *wait_ms)
{
    ps_view_member members[8] = {{.role = PS_ROLE_SERVER}};
    for (int i = 0; i < n; i++) {
        ps_view_member *m = &members[i + 1];
        *m = (ps_view_member){.role = PS_ROLE_WORKER, .rank = i};
        m->now[PS_METRIC_STEP] = 10;
        m->now[PS_METRIC_STEP_SECONDS] = 1; // 100 ms a step
        m->now[PS_METRIC_WAIT_SECONDS] = wait_ms[i] * 10 / 1e3;
    }
    const ps_job_picture picture = {.members = members, .n_members = n + 1};
    return ps_job_picture_wait(&picture);
}

TEST(the_one_who_waits_least_is_waited_for)
{
    const ps_view_wait slow = waits(3, (const double[]){60, 2, 58});
    assert_int_equal(slow.who, PS_VIEW_WORKER);
    assert_int_equal(slow.rank, 1);
    assert_true(fabs(slow.others_ms - 59) < 1e-6 && fabs(slow.step_ms - 100) < 1e-6);
    assert_int_equal(waits(3, (const double[]){60, 55, 58}).who, PS_VIEW_EXCHANGE);
    assert_int_equal(waits(3, (const double[]){6, 1, 3}).who, PS_VIEW_NOBODY);
    assert_int_equal(waits(1, (const double[]){60}).who, PS_VIEW_EXCHANGE);
    assert_int_equal(waits(0, NULL).who, PS_VIEW_UNKNOWN);
}

TEST(a_silent_member_is_named)
{
    const uint64_t second = 1000000000u;
    ps_view_member members[] = {
        {.role = PS_ROLE_SERVER, .rank = 1, .heard_ns = 95 * second},
        {.role = PS_ROLE_WORKER, .rank = 0, .heard_ns = 97 * second},
        {.role = PS_ROLE_WORKER, .rank = 1}}; // it has not come yet
    ps_job_picture picture = {.members = members,
                              .n_members = 3,
                              .now_ns = 100 * second,
                              .state = PS_VIEW_RUNNING};
    const ps_view_wait w = ps_job_picture_wait(&picture);
    assert_int_equal(w.who, PS_VIEW_SILENT);
    assert_int_equal(w.role, PS_ROLE_SERVER);
    assert_int_equal(w.rank, 1);
    assert_true(fabs(w.silent_seconds - 5) < 1e-6);
    members[0].heard_ns = members[1].heard_ns = 99 * second;
    assert_int_not_equal(ps_job_picture_wait(&picture).who, PS_VIEW_SILENT);
}

/* The others do not wait for it. What its rank tells next is another process's. */
TEST(one_that_is_away_is_not_waited_for)
{
    ps_job_view *view = make_view(2);
    ps_job_picture picture;
    take(view, 0, 7, 1);
    take(view, 1, 7, 1);
    ps_job_view_lose(view, PS_ROLE_WORKER, 1);
    ps_job_view_lose(view, PS_ROLE_WORKER, 9);
    assert_ok(ps_job_view_copy(view, &picture));
    const ps_view_member *lost = &picture.members[2];
    assert_true(lost->away && !picture.members[1].away);
    assert_true(lost->heard_ns == 0 && isnan(lost->now[PS_METRIC_STEP]));
    assert_string_equal(lost->host, "b");
    picture.now_ns = picture.members[1].heard_ns + 1000000;
    assert_int_not_equal(ps_job_picture_wait(&picture).who, PS_VIEW_SILENT);
    char *text;
    assert_ok(ps_job_picture_json(&picture, &text));
    assert_non_null(strstr(text, "\"away\":true"));
    free(text);
    ps_job_picture_fini(&picture);
    take(view, 1, 1, 1);
    assert_ok(ps_job_view_copy(view, &picture));
    assert_true(!picture.members[2].away && picture.members[2].now[PS_METRIC_STEP] == 1);
    ps_job_picture_fini(&picture);
    ps_job_view_destroy(&view);
}

/* Sums over the servers, by table; a server that is away has none. */
TEST(figures_of_tables_are_those_of_all_servers)
{
    ps_row_figure names[] = {{.name = "user"}, {.name = "item"}};
    double values[PS_METRICS + 2 * PS_ROW_FIGURES + 1];
    ps_job_view *view = make_view(2);
    ps_job_picture picture;
    char *text;
    for (int i = 0; i < PS_METRICS; i++)
        values[i] = NAN;
    ps_job_view_add(view, PS_ROLE_SERVER, 1, "s");
    ps_job_view_name_tables(view, &(ps_row_figure_list){names, 2});
    for (int rank = 0; rank < 2; rank++) {
        for (int i = 0; i <= 2 * PS_ROW_FIGURES; i++) // the last one is none
            values[PS_METRICS + i] = 100 * (rank + 1) + i;
        ps_job_view_take(view, PS_ROLE_SERVER, rank, "", values,
                         PS_METRICS + 2 * PS_ROW_FIGURES + 1);
    }
    assert_ok(ps_job_view_copy(view, &picture));
    assert_ok(ps_job_picture_json(&picture, &text));
    json_t *o = json_loads(text, 0, NULL);
    const json_t *tables = json_object_get(o, "tables");
    assert_int_equal(json_array_size(tables), 2);
    const json_t *item = json_array_get(tables, 1);
    assert_string_equal(json_string_value(json_object_get(item, "name")), "item");
    assert_int_equal(json_integer_value(json_object_get(item, "bytes")),
                     300 + 2 * (PS_ROW_FIGURES + PS_ROW_FIGURE_BYTES));
    json_decref(o);
    free(text);
    ps_job_picture_fini(&picture);
    values[PS_METRICS] = NAN;
    values[PS_METRICS + 1] = -1;
    ps_job_view_take(view, PS_ROLE_SERVER, 0, "", values, PS_METRICS + PS_ROW_FIGURES);
    ps_job_view_lose(view, PS_ROLE_SERVER, 1);
    assert_ok(ps_job_view_copy(view, &picture));
    assert_int_equal(picture.tables.n, 1);
    assert_int_equal(picture.tables.tables[0].of[0] + picture.tables.tables[0].of[1], 0);
    assert_int_equal(picture.tables.tables[0].of[2], 202);
    ps_job_picture_fini(&picture);
    ps_job_view_destroy(&view);
}

static void expect_quality(double told, const char *name, const char *key, double value)
{
    ps_job_view *view = make_view(2);
    ps_job_picture picture;
    double values[PS_METRICS];
    char *text;
    for (int i = 0; i < PS_METRICS; i++)
        values[i] = NAN;
    values[PS_METRIC_TEST_ACCURACY] = 0.75;
    values[PS_METRIC_TEST_AUC] = 0.5;
    values[PS_METRIC_TEST_QUALITY] = told;
    ps_job_view_take(view, PS_ROLE_WORKER, 0, "", values, PS_METRICS);
    assert_ok(ps_job_view_copy(view, &picture));
    assert_ok(ps_job_picture_json(&picture, &text));
    json_t *o = json_loads(text, 0, NULL);
    const json_t *q = json_object_get(json_object_get(o, "job"), "quality");
    assert_string_equal(json_string_value(json_object_get(q, "name")), name);
    assert_string_equal(json_string_value(json_object_get(q, "key")), key);
    if (isnan(value))
        assert_true(json_is_null(json_object_get(q, "value")));
    else
        assert_true(json_real_value(json_object_get(q, "value")) == value);
    json_decref(o);
    free(text);
    ps_job_picture_fini(&picture);
    ps_job_view_destroy(&view);
}

/* The worker says by which figure to judge the model; one that says nonsense is judged by
 * accuracy. */
TEST(the_figure_by_which_to_judge_is_named)
{
    expect_quality(PS_QUALITY_AUC, "AUC", "test_auc", 0.5);
    expect_quality(PS_QUALITY_R2, "R2", "test_r2", NAN);
    for (int i = 0; i < 4; i++)
        expect_quality((const double[]){NAN, PS_QUALITIES, -1, INFINITY}[i], "accuracy",
                       "test_accuracy", 0.75);
}

/* Values and texts that no honest member sends. */
TEST(lies_make_no_bad_json)
{
    ps_job_view *view = make_view(3);
    ps_job_picture picture;
    char *text;
    double values[3] = {INFINITY, -1e308, NAN};
    ps_job_view_take(view, PS_ROLE_WORKER, 0, "\xff\xfe\"</script>", values, 3);
    ps_job_view_take(view, PS_ROLE_WORKER, 1, "", values, 0);
    ps_job_view_take(view, PS_ROLE_WORKER, 77, "", values, 3); // not a member
    assert_ok(ps_job_view_copy(view, &picture));
    assert_ok(ps_job_picture_json(&picture, &text));
    json_t *o = json_loads(text, 0, NULL);
    assert_non_null(o);
    json_t *members = json_object_get(o, "members");
    assert_int_equal(json_array_size(members), 4);
    json_t *first = json_array_get(members, 0);
    assert_string_equal(json_string_value(json_object_get(first, "role")), "server");
    assert_true(json_is_null(json_object_get(first, "silent_seconds")));
    json_decref(o);
    free(text);
    ps_job_picture_fini(&picture);
    ps_job_view_destroy(&view);
}

TEST(nothing_is_needed)
{
    ps_job_view_begin(NULL);
    ps_job_view_add(NULL, PS_ROLE_WORKER, 0, "a");
    ps_job_view_set_state(NULL, PS_VIEW_ENDED, "");
    ps_job_view_take(NULL, PS_ROLE_WORKER, 0, "", NULL, 0);
    ps_job_view *view = NULL;
    ps_job_view_destroy(&view);
}
