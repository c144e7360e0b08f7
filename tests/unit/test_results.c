/* The files of a run: metrics, summary and progress, read back by jansson. */
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "event_file.h"
#include "metrics.h"
#include "progress.h"
#include "run_dir.h"
#include "summary.h"

static ps_run_dir dir;

static int make_dir(void **state)
{
    char path[] = "/tmp/pstrain-results-XXXXXX";
    if (!mkdtemp(path)) return 1;
    return ps_run_dir_init(&dir, path, "job") == PS_OK ? 0 : 1;
}

static int remove_dir(void **state)
{
    char command[PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", dir.path);
    return system(command);
}

static json_t *read_json(const char *path, json_t **second)
{
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    json_t *first = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
    if (second) *second = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
    fclose(f);
    assert_non_null(first);
    return first;
}

TEST(metrics_are_lines_of_json)
{
    char path[PATH_MAX];
    ps_metrics metrics;
    assert_ok(ps_run_dir_path(&dir, "metrics.jsonl", path));
    assert_ok(ps_metrics_open(&metrics, path));
    ps_step_record step = {
        .step = 10, .epoch = 1, .loss = 0.1, .loss_mean = NAN, .loss_scale = 1024};
    ps_eval_record eval = {.step = 20, .accuracy = 0.75, .samples = 4};
    assert_ok(ps_metrics_step(&metrics, &step));
    assert_ok(ps_metrics_eval(&metrics, &eval));
    assert_ok(ps_metrics_close(&metrics));
    json_t *second, *first = read_json(path, &second);
    assert_int_equal(json_integer_value(json_object_get(first, "step")), 10);
    // Every bit of a loss comes back; a number that is not finite is null.
    assert_true(json_real_value(json_object_get(first, "loss")) == 0.1);
    assert_true(json_is_null(json_object_get(first, "loss_mean")));
    assert_true(json_real_value(json_object_get(first, "loss_scale")) == 1024);
    assert_true(json_real_value(json_object_get(second, "test_accuracy")) == 0.75);
    json_decref(first);
    json_decref(second);
}

/* The summary of a run with two servers. */
static void write_summary(char **stats)
{
    static ps_trainer_result result = {
        .steps = 5,
        .train_loss = NAN,
        .evaluation = {.measures = {.accuracy = 0.5}, .samples = 10},
        .traffic = {.bytes_sent = 50, .raw_bytes = 200}};
    ps_config config;
    assert_ok(ps_config_load(&config, NULL, NULL, 0));
    const ps_summary summary = {.config = &config,
                                .result = &result,
                                .mode = "ps",
                                .device = "cpu",
                                .exchange = "ps",
                                .servers = 2,
                                .workers = 3,
                                .server_stats = stats};
    assert_ok(ps_summary_write(&summary, &dir));
    ps_config_fini(&config);
}

/* Behind the first line, which has been there at the checkpoint. Within a line, the
 * checkpoint was that of another file. */
TEST(metrics_go_on_behind_a_line)
{
    char path[PATH_MAX];
    struct stat whole, st;
    ps_metrics metrics;
    assert_ok(ps_run_dir_path(&dir, "continued.jsonl", path));
    assert_ok(ps_metrics_open(&metrics, path));
    assert_ok(ps_metrics_step(&metrics, &(ps_step_record){.step = 1}));
    const int64_t first = ps_metrics_bytes(&metrics);
    assert_ok(ps_metrics_step(&metrics, &(ps_step_record){.step = 2}));
    assert_ok(ps_metrics_close(&metrics));
    assert_int_equal(stat(path, &whole), 0);
    for (int64_t bytes = whole.st_size + 1; bytes >= 0; bytes--) {
        const bool ends = bytes == first || bytes == 0;
        if (bytes == 0 || bytes == first - 1)
            assert_int_equal(stat(path, &whole), 0); // the second line is gone
        assert_ok(ps_metrics_reopen(&metrics, path, bytes));
        assert_ok(ps_metrics_close(&metrics));
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, ends ? bytes : whole.st_size);
    }
}

/* The process before died while it wrote its last line. */
TEST(metrics_go_on_behind_a_whole_line)
{
    static const char lines[] = "{\"step\":1}\n{\"step\":2}\n{\"st";
    const int64_t whole = (int64_t)(strrchr(lines, '\n') - lines) + 1;
    char path[PATH_MAX];
    struct stat st;
    ps_metrics metrics;
    assert_ok(ps_run_dir_path(&dir, "torn.jsonl", path));
    for (int64_t bytes = 5; bytes < 50; bytes += 12) { // within a line, or beyond the end
        FILE *f = fopen(path, "we");
        fputs(lines, f);
        fclose(f);
        assert_ok(ps_metrics_reopen(&metrics, path, bytes));
        assert_ok(ps_metrics_close(&metrics));
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, whole);
    }
}

TEST(the_summary_holds_the_servers_accounts)
{
    char path[PATH_MAX];
    char *stats[] = {"{\"peak_rss_bytes\": 7}", "{\"peak_rss_bytes\": 9}"};
    assert_ok(ps_run_dir_path(&dir, "summary.json", path));
    write_summary(stats);
    json_t *o = read_json(path, NULL);
    assert_int_equal(json_integer_value(json_object_get(o, "steps")), 5);
    assert_true(json_is_null(json_object_get(o, "train_loss")));
    assert_true(json_real_value(json_object_get(o, "test_accuracy")) == 0.5);
    assert_true(json_real_value(json_object_get(o, "bytes_sent_per_step")) == 10);
    assert_true(json_real_value(json_object_get(o, "compression_ratio")) == 4);
    assert_int_equal(json_integer_value(json_object_get(o, "server_peak_rss_bytes")), 9);
    assert_int_equal(json_array_size(json_object_get(o, "server_stats")), 2);
    json_decref(o);
}

TEST(an_account_that_is_no_json_does_no_harm)
{
    char path[PATH_MAX];
    char *stats[] = {"{oh", NULL};
    assert_ok(ps_run_dir_path(&dir, "summary.json", path));
    write_summary(stats);
    json_t *o = read_json(path, NULL);
    assert_true(json_is_null(json_object_get(o, "server_peak_rss_bytes")));
    json_decref(o);
}

/* Files may not become longer than this. Returns what held before. */
static struct rlimit limit_files(rlim_t bytes)
{
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit now = {bytes, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
    return before;
}

/* A part of each line, and of each event, would fit. */
TEST(what_the_disk_has_no_room_for_is_left_out)
{
    ps_metrics metrics;
    ps_event_file events;
    const ps_event_scalar loss = {"train/loss", 0.5};
    struct stat before, after;
    char path[PATH_MAX];
    assert_ok(ps_run_dir_path(&dir, "full.jsonl", path));
    assert_ok(ps_metrics_open(&metrics, path));
    assert_ok(ps_event_file_open(&events, dir.path, 0));
    assert_ok(ps_metrics_step(&metrics, &(ps_step_record){.step = 1}));
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit unlimited = limit_files((rlim_t)ps_metrics_bytes(&metrics) + 20);
    for (uint64_t step = 2; step < 4; step++)
        assert_ok(ps_metrics_step(&metrics, &(ps_step_record){.step = step}));
    setrlimit(RLIMIT_FSIZE, &unlimited);
    assert_ok(ps_metrics_step(&metrics, &(ps_step_record){.step = 4}));
    assert_ok(ps_metrics_close(&metrics));
    json_t *second, *first = read_json(path, &second);
    assert_int_equal(json_integer_value(json_object_get(first, "step")), 1);
    assert_int_equal(json_integer_value(json_object_get(second, "step")), 4);
    json_decref(first);
    json_decref(second);

    assert_int_equal(fstat(fileno(events.file), &before), 0);
    unlimited = limit_files((rlim_t)before.st_size + 20);
    ps_event_file_add(&events, 1, &loss, 1);
    setrlimit(RLIMIT_FSIZE, &unlimited);
    assert_int_equal(fstat(fileno(events.file), &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    ps_event_file_add(&events, 2, &loss, 1);
    assert_int_equal(fstat(fileno(events.file), &after), 0);
    assert_true(after.st_size > before.st_size + 20);
    assert_ok(ps_event_file_close(&events));
}

/* Returns what a progress display of that width writes for a state. */
static void show(int columns, const ps_progress_state *s, char *text, size_t bytes)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    ps_progress p;
    ps_progress_init(&p, f, columns);
    ps_progress_show(&p, s, true);
    rewind(f);
    size_t n = fread(text, 1, bytes - 1, f);
    text[n] = '\0';
    fclose(f);
}

TEST(progress_fits_its_width)
{
    char text[1024];
    ps_progress_state s = {.epoch = 1,
                           .epochs = 4,
                           .step = 50,
                           .steps = 200,
                           .loss = 1.5,
                           .samples_per_second = 1000,
                           .seconds_left = 3723};
    show(0, &s, text, sizeof text);
    assert_string_equal(
        text, "epoch 1/4  step 50/200  loss 1.5000  1.0 k samples/s  1:02:03 left\n");
    show(120, &s, text, sizeof text);
    assert_non_null(strstr(text, "|██████                  |"));
    assert_int_equal(text[strlen(text) - 1], '\r');
    s.epochs = 40, s.step = 500, s.steps = 2000, s.samples_per_second = 35316;
    show(80, &s, text, sizeof text);
    assert_string_equal(text, "|███         |  25%  epoch 1/40  step 500/2,000  "
                              "loss 1.5000  35.3 k/s  1:02:03\r");
    show(60, &s, text, sizeof text);
    assert_string_equal(text, "|██      |  25%  epoch 1/40  loss 1.5000  35.3 k/s  "
                              "1:02:03\r");
    s.waits_for = "worker 1: slow compute";
    show(80, &s, text, sizeof text);
    assert_non_null(strstr(text, "loss 1.5000  waits for worker 1: slow compute"));
    s.waits_for = NULL;
    show(40, &s, text, sizeof text);
    assert_null(strstr(text, "█"));
    assert_int_equal(strlen(text), 40); // 39 cells and the carriage return
}

TEST(a_folder_that_is_a_file_is_an_error)
{
    ps_run_dir other;
    assert_error(ps_run_dir_init(&other, "/dev/null/below", "job"), PS_ERR_IO,
                 "/dev/null");
}

/* Two runs at once in a process: flock tells them apart by their descriptors. */
TEST(a_folder_belongs_to_one_run)
{
    char path[PATH_MAX + 16];
    ps_run_dir first, second;
    snprintf(path, sizeof path, "%s/claimed", dir.path);
    assert_ok(ps_run_dir_init(&first, path, "job"));
    assert_ok(ps_run_dir_claim(&first, false, false));
    assert_ok(ps_run_dir_init(&second, path, "job"));
    assert_error(ps_run_dir_claim(&second, false, false), PS_ERR_IO,
                 "holds a run already (metrics.jsonl)");
    assert_error(ps_run_dir_claim(&second, true, false), PS_ERR_IO,
                 "another job is writing into it");
    ps_run_dir_fini(&second); // removes no file of the first run
    assert_int_equal(access(first.path, F_OK), 0);
    ps_run_dir_fini(&first); // so the folder is empty
    assert_int_not_equal(access(path, F_OK), 0);
}

TEST(overwriting_removes_what_is_the_runs)
{
    static const struct {
        const char *name;
        bool ours;
    } files[] = {{"checkpoints/step-6.safetensors", true},
                 {"checkpoints/step-6.rows.safetensors", true},
                 {"checkpoints/step-7.rows.safetensors.tmp", true},
                 {"checkpoints/step-6.rows", false},
                 {"checkpoints/step-rows.safetensors", false},
                 {"checkpoints/mine.rows.safetensors", false},
                 {"model.rows.safetensors", true},
                 {"events.out.tfevents.1", true},
                 {"membership.jsonl", true},
                 {"policy.log", true},
                 {"policy-12.log", true},
                 {"policy-.log", false},
                 {"policy-mine.log", false},
                 {"policy-12.log.gz", false},
                 {"mine.safetensors", false}};
    char path[PATH_MAX];
    for (int old = 1; old >= 0; old--) { // an earlier start's; then another job's
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            assert_ok(ps_run_dir_path(&dir, files[i].name, path));
            fclose(fopen(path, "we"));
            assert_int_equal(ps_run_dir_replaces(&dir, path), files[i].ours);
        }
        assert_ok(ps_run_dir_claim(&dir, true, old));
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            assert_ok(ps_run_dir_path(&dir, files[i].name, path));
            const bool stays = old && strcmp(files[i].name, "membership.jsonl") == 0;
            assert_int_equal(access(path, F_OK) != 0, files[i].ours && !stays);
            if (access(path, F_OK) != 0) assert_false(ps_run_dir_replaces(&dir, path));
        }
        ps_run_dir_fini(&dir);
    }
}

int main(void)
{
    return check_run(make_dir, remove_dir);
}
