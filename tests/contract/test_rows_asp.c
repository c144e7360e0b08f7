/* rows.policy asp in a shard without a network: which worker waits for which, what a
 * record has, and that a job which repeats it gives the same answers in another order of
 * arrival. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "check.h"
#include "rng.h"
#include "rows_body.h"
#include "rows_order.h"
#include "shard_rows_rig.h"
#include "temp_files.h"

enum { STEPS = 40, MESSAGES = 3 * STEPS + 2, ANSWER_MOST = 256 };

/* What a worker was answered to each of its messages. */
typedef struct answers {
    struct {
        bool whole;
        size_t bytes;
        uint8_t body[ANSWER_MOST];
    } of[MESSAGES];
} answers;
static answers heard[WORKERS];

static void open_asp(const char *log, const char *replay)
{
    const char *set[3];
    char log_key[640], replay_key[640];
    int n = 0;
    set[n++] = "rows.policy=asp";
    snprintf(log_key, sizeof log_key, "server.rows_log=%s", log);
    snprintf(replay_key, sizeof replay_key, "server.rows_replay=%s", replay);
    if (*log) set[n++] = log_key;
    if (*replay) set[n++] = replay_key;
    memset(heard, 0, sizeof heard);
    rig_open_with(NULL, false, set, n);
}

/* Takes what the shard has answered. */
static void listen(void)
{
    for (uint32_t r = 0; r < WORKERS; r++)
        for (bool got = true; got;) {
            ps_wire_frames f;
            ps_wire_header h;
            ps_wire_frames_open(&f);
            assert_ok(ps_wire_recv(rig.worker[r], false, &f, &got));
            if (got) {
                assert_ok(
                    ps_wire_decode(zmq_msg_data(&f.header), zmq_msg_size(&f.header), &h));
                if (h.kind == PS_MSG_ROWS) {
                    const size_t bytes = zmq_msg_size(&f.payload);
                    assert_in_range(h.rows.number, 1, MESSAGES - 1);
                    assert_in_range(h.rows.at + bytes, 0, ANSWER_MOST);
                    memcpy(heard[r].of[h.rows.number].body + h.rows.at,
                           zmq_msg_data(&f.payload), bytes);
                    heard[r].of[h.rows.number].bytes += bytes;
                    heard[r].of[h.rows.number].whole =
                        heard[r].of[h.rows.number].bytes == h.count;
                }
            }
            ps_wire_frames_close(&f);
        }
}

static bool is_answered(uint32_t rank, uint64_t number)
{
    listen();
    return heard[rank].of[number].whole;
}

/* All numbers of an answer. */
static void expect_rows(uint32_t rank, uint64_t number, float value)
{
    assert_true(is_answered(rank, number));
    for (size_t i = 0; i < IDS * DIM; i++) {
        float at;
        memcpy(&at, heard[rank].of[number].body + i * sizeof at, sizeof at);
        assert_true(at == value);
    }
}

static void refused(rig_message m, const char *why)
{
    assert_int_not_equal(rig_hand_in(&m), PS_OK);
    assert_non_null(strstr(ps_err_message(), why));
}

/* Owned by the caller. */
static char *record_of(const char *path)
{
    char *text = calloc(1, 1 << 16);
    FILE *f = fopen(path, "r");
    assert_non_null(text);
    assert_non_null(f);
    assert_in_range(fread(text, 1, (1 << 16) - 1, f), 1, (1 << 16) - 2);
    fclose(f);
    return text;
}

static void expect_record(const char *wanted)
{
    char *text = record_of(temp_path("rows-0.log"));
    assert_string_equal(strchr(text, '\n') + 1, wanted);
    free(text);
}

static rig_message save(uint32_t rank, uint64_t number, uint64_t step)
{
    rig_message m =
        rig_message_of(PS_MSG_SAVE_ROWS, rank, number, step, sizeof(ps_rows_save));
    memset(m.body, 0, sizeof(ps_rows_save)); // the first page of the first partition
    return m;
}

/* Worker 0 goes ahead: it waits for nobody's gradients, but its own of the next step wait
 * for worker 1, which may still make a checkpoint between the two. */
IN_FOLDER(a_worker_is_a_step_ahead)
{
    open_asp(folder.path, "");
    for (uint32_t r = 0; r < WORKERS; r++) {
        rig_send(rig_pull(r, 1, 0, rig_ids));
        expect_rows(r, 1, 1);
    }
    rig_send(rig_push(0, 2, 0, 0.25f));
    assert_true(is_answered(0, 2));
    rig_send(rig_pull(0, 3, 1, rig_ids));
    expect_rows(0, 3, 0.875f); // 1 - 0.5 * 0.25
    rig_send(rig_push(0, 4, 1, 1));
    assert_false(is_answered(0, 4));
    rig_send(rig_push(1, 2, 0, 0.75f));
    assert_true(is_answered(1, 2));
    assert_false(is_answered(0, 4)); // of step 1, which worker 1 has not begun
    rig_send(save(1, 3, 1));
    assert_true(is_answered(1, 3));
    rig_send(rig_pull(1, 4, 1, rig_ids));
    expect_rows(1, 4, 0.5f);
    assert_true(is_answered(0, 4));
    rig_send(rig_push(1, 5, 1, 1));
    assert_true(is_answered(1, 5));
    rig_close();
    expect_record("0: 0 1 0! 0+ 1!\n1: 1 0! 1!\n");
}

/* With what was asked ahead, a worker begins a step when it asks for the next one's. */
IN_FOLDER(what_is_asked_ahead_waits_for_nobody)
{
    open_asp(folder.path, "");
    for (uint32_t r = 0; r < WORKERS; r++) {
        rig_send(rig_pull(r, 1, 0, rig_ids));
        rig_send(rig_pull_ahead(r, 2, 1, rig_ids));
    }
    rig_send(rig_push(0, 3, 0, 0.5f));
    assert_true(is_answered(0, 2));
    assert_true(is_answered(0, 3));
    rig_send(rig_pull_ahead(0, 4, 2, rig_ids));
    assert_false(is_answered(1, 2)); // its own gradients are not in
    rig_send(rig_push(1, 3, 0, 0.5f));
    assert_true(is_answered(1, 2));
    rig_send(rig_push(0, 5, 1, 0.5f));
    assert_false(is_answered(0, 5));
    rig_send(rig_pull_ahead(1, 4, 2, rig_ids));
    assert_true(is_answered(0, 5));
    rig_close();
    expect_record("0: 0 0* 1 1* 0! 1!\n1: 0* 1* 0!\n");
}

TEST(within_a_step_nothing_is_saved)
{
    open_asp("", "");
    rig_send(rig_pull(0, 1, 0, rig_ids));
    refused(save(0, 2, 0), "worker 0 saves or loads the rows within step 0");
    rig_close();
}

/* ---- repeating ---- */

typedef struct script {
    ps_mt19937 draw; // the same in all runs
    uint64_t number, step;
    uint64_t asked; // whose answer it waits for; 0: none
    enum { BEGINS, LOOKED_UP, ASKED_AHEAD } phase;
    bool ready; // the step's rows were asked for in the one before
} script;

/* Sends a worker's next message, if it waits for nothing. */
static void go_on(script *w, uint32_t rank)
{
    if (w->step == STEPS || (w->asked && !is_answered(rank, w->asked))) return;
    w->number++;
    w->asked = 0;
    if (w->phase == BEGINS && !w->ready) {
        rig_send(rig_pull(rank, w->number, w->step, rig_ids));
        w->asked = w->number;
        w->phase = LOOKED_UP;
    } else if (w->phase != ASKED_AHEAD && w->step + 1 < STEPS &&
               ps_mt19937_u32(&w->draw) % 2) {
        rig_send(rig_pull_ahead(rank, w->number, w->step + 1, rig_ids));
        w->phase = ASKED_AHEAD;
    } else {
        const float value = (float)(ps_mt19937_u32(&w->draw) % 1000) / 999;
        rig_send(rig_push(rank, w->number, w->step, value));
        w->ready = w->phase == ASKED_AHEAD;
        if (w->ready) w->asked = w->number - 1;
        w->phase = BEGINS;
        w->step++;
    }
}

/* Which of two workers goes on is chance's. */
static void run(const char *log, const char *replay, uint64_t seed)
{
    script w[WORKERS] = {{.number = 0}};
    ps_mt19937 order;
    ps_mt19937_seed(&order, seed);
    open_asp(log, replay);
    for (uint32_t r = 0; r < WORKERS; r++)
        ps_mt19937_seed(&w[r].draw, r);
    for (int turns = 0; w[0].step < STEPS || w[1].step < STEPS; turns++) {
        const uint32_t r = ps_mt19937_u32(&order) % 5 < 3; // worker 1 is faster
        assert_in_range(turns, 0, 100000);
        go_on(&w[r], r);
    }
    listen();
    rig_close();
}

IN_FOLDER(a_record_is_repeated)
{
    static answers first[WORKERS];
    int others = 0;
    char again[512], path[560];
    snprintf(again, sizeof again, "%s", temp_path("again"));
    snprintf(path, sizeof path, "%s/rows-0.log", again);
    assert_int_equal(mkdir(again, 0700), 0);
    for (uint64_t seed = 1; seed <= 30; seed++) {
        run(folder.path, "", seed);
        memcpy(first, heard, sizeof first);
        run(again, folder.path, seed + 1000);
        assert_memory_equal(heard, first, sizeof first);
        char *was = record_of(temp_path("rows-0.log")), *is = record_of(path);
        assert_string_equal(was, is);
        free(was);
        free(is);
        run("", "", seed + 1000);
        others += memcmp(heard, first, sizeof first) != 0;
    }
    assert_in_range(others, 20, 30); // chance decides otherwise
    remove(path);
    assert_int_equal(rmdir(again), 0);
}

static void write_record(const char *lines)
{
    char text[512];
    const int n = snprintf(
        text, sizeof text,
        "{\"rows\":\"asp\",\"workers\":2,\"shards\":1,\"shard\":0,\"first\":0}\n%s",
        lines);
    assert_int_equal(temp_write("rows-0.log", text, (size_t)n), 0);
}

/* Step 1 was made twice, and the server died while it wrote a line. */
IN_FOLDER(a_record_goes_back)
{
    write_record("0: 0 1 1! 1+ 0!\n1: 0\npoint 1 77\n1: 1! 0!\nback 1\n1: 1\n1: 0 1! "
                 "0!\n2: 1 0 1");
    open_asp("", folder.path);
    for (uint32_t r = 0; r < WORKERS; r++)
        rig_send(rig_pull(r, 1, 0, rig_ids));
    rig_send(rig_push(0, 2, 0, 0.25f));
    rig_send(rig_pull(0, 3, 1, rig_ids));
    assert_false(is_answered(0, 2)); // worker 1 was the first
    rig_send(rig_push(1, 2, 0, 0.75f));
    assert_true(is_answered(0, 2));
    assert_false(is_answered(0, 3)); // and in step 1, too, the second time
    rig_send(rig_pull(1, 3, 1, rig_ids));
    expect_rows(1, 3, 0.5f);
    expect_rows(0, 3, 0.5f);
    rig_close();
}

/* A server is killed in the middle of a line: the next one goes on behind the point. */
IN_FOLDER(a_record_goes_on_behind_its_point)
{
    const ps_rows_order_of of = {0, 1, WORKERS};
    char key[640];
    ps_config c;
    ps_rows_order *order;
    snprintf(key, sizeof key, "server.rows_log=%s", folder.path);
    const char *const set[] = {key};
    assert_ok(ps_config_load(&c, NULL, set, 1));
    write_record("0: 0 1 0! 1!\npoint 1 77\n1: 0 1 0! 1!\n2");
    for (uint64_t point = 77; point <= 78; point++) { // the record lacks the second one
        assert_ok(ps_rows_order_open(&c, &of, &order));
        assert_ok(ps_rows_order_go_back(order, 1, point));
        ps_rows_order_add(order, 1, 1, PS_ROWS_TURN_PULL);
        ps_rows_order_end_step(order, 1);
        ps_rows_order_close(&order);
        expect_record(point == 77 ? "0: 0 1 0! 1!\npoint 1 77\nback 1\n1: 1\n"
                                  : "1: 1\n");
    }
    ps_config_fini(&c);
}

IN_FOLDER(a_record_of_another_job_is_refused)
{
    static const struct {
        const char *lines, *why;
    } cases[] = {{"1: 0 1\n", "line 2: the next step was expected"},
                 {"0: 0 1\n2: 0\n", "line 3: the next step was expected"},
                 {"0: 0 2\n", "line 2: not a list of workers' turns"},
                 {"0: 0 1?\n", "line 2: not a list"},
                 {"0: -1\n", "line 2: not a list"},
                 {"back 1\n", "line 2: it goes back to a step that is not there"},
                 {"0: 0\nback 2\n", "line 3: it goes back to a step"},
                 {"0: 0\nback x\n", "line 3: not a step"},
                 {"0: 0 1*\n1: 0\nback 1\n", "line 4: the job went back, for a death"}};
    ps_config c;
    ps_rows_order *order;
    char key[640];
    snprintf(key, sizeof key, "server.rows_replay=%s", folder.path);
    const char *const set[] = {key};
    const ps_rows_order_of of = {0, 1, WORKERS};
    assert_ok(ps_config_load(&c, NULL, set, 1));
    assert_error(ps_rows_order_open(&c, &of, &order), PS_ERR_IO, "rows-0.log");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_record(cases[i].lines);
        assert_error(ps_rows_order_open(&c, &of, &order), PS_ERR_FORMAT, cases[i].why);
        assert_null(order);
    }
    write_record("0: 0 1\n");
    const ps_rows_order_of other = {0, 1, 3};
    assert_error(ps_rows_order_open(&c, &other, &order), PS_ERR_FORMAT,
                 "is not the record of a job with 3 workers and 1 shards");
    ps_config_fini(&c);
    // a job that does something else
    open_asp("", folder.path);
    for (uint32_t r = 0; r < WORKERS; r++)
        rig_send(rig_pull(r, 1, 0, rig_ids));
    refused(rig_push(0, 2, 0, 0.25f), "worker 0 has gradients, and ");
    rig_close();
    write_record("0: 0 1 0!\n");
    open_asp("", folder.path);
    for (uint32_t r = 0; r < WORKERS; r++)
        rig_send(rig_pull(r, 1, 0, rig_ids));
    rig_send(rig_push(0, 2, 0, 0.25f));
    refused(rig_pull(0, 3, 1, rig_ids), "has no more of it");
    rig_close();
}
