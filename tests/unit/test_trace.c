/* The trace's file, read back: its records, its bounds, and what threads write. */
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "check.h"
#include "clock.h"
#include "clock_sync.h"
#include "temp_files.h"
#include "thread.h"
#include "trace.h"

typedef struct record {
    uint64_t begin, duration;
    uint32_t step, chunk, peer;
    uint8_t kind, lane;
    uint16_t zero;
} record;

static record records[4096];

static void start(uint64_t first, uint64_t steps, uint64_t limit)
{
    const ps_trace_options o = {.path = temp_path("trace"),
                                .role = "server",
                                .rank = 3,
                                .first = first,
                                .steps = steps,
                                .limit = limit};
    assert_ok(ps_trace_start(&o));
}

/* Reads the records; returns their number. */
static size_t read_back(json_t **head)
{
    char line[2048];
    FILE *f = fopen(temp_path("trace"), "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    size_t n = fread(records, sizeof *records, sizeof records / sizeof *records, f);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    json_t *o = json_loads(line, 0, NULL);
    assert_non_null(o);
    if (head)
        *head = o;
    else
        json_decref(o);
    return n;
}

static size_t count(size_t n, ps_trace_kind kind)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += records[i].kind == kind;
    return found;
}

IN_FOLDER(the_head_names_process_and_kinds)
{
    json_t *head;
    start(0, 0, 1 << 20);
    ps_trace_job(77);
    ps_trace_clock(5, -3, 2);
    assert_ok(ps_trace_stop());
    assert_int_equal(read_back(&head), 3);
    assert_string_equal(json_string_value(json_object_get(head, "role")), "server");
    assert_int_equal(json_integer_value(json_object_get(head, "rank")), 3);
    json_t *kinds = json_object_get(head, "kinds");
    assert_int_equal(json_array_size(kinds), PS_TRACE_KINDS);
    assert_string_equal(json_string_value(json_array_get(kinds, PS_TRACE_APPLY)),
                        "apply");
    json_decref(head);
    assert_int_equal(records[0].kind, PS_TRACE_LANE);
    assert_memory_equal(&records[0].begin, "main", 5);
    assert_true(records[1].begin == 77);
    assert_int_equal(records[2].step, UINT32_MAX - 2); // -3
    assert_int_equal(records[2].chunk, UINT32_MAX);
}

IN_FOLDER(a_span_has_its_time_and_its_step)
{
    start(0, 0, 1 << 20);
    const uint64_t begin = ps_trace_now();
    assert_true(begin > 0);
    ps_trace_add_chunk(PS_TRACE_APPLY, begin, 9, 4, 1);
    const uint64_t end = ps_clock_ns();
    assert_ok(ps_trace_stop());
    assert_int_equal(read_back(NULL), 2);
    const record *r = &records[1];
    assert_true(r->begin == begin && r->begin + r->duration <= end);
    assert_int_equal(r->step, 9);
    assert_int_equal(r->chunk, 4);
    assert_int_equal(r->peer, 1);
}

IN_FOLDER(nothing_is_recorded_when_it_is_off)
{
    assert_false(ps_trace_on());
    assert_true(ps_trace_now() == 0);
    ps_trace_add(PS_TRACE_STEP, 1, 1);
    start(0, 0, 1 << 20);
    ps_trace_add(PS_TRACE_STEP, 0, 1); // it began before
    assert_ok(ps_trace_stop());
    assert_int_equal(count(read_back(NULL), PS_TRACE_STEP), 0);
}

IN_FOLDER(only_the_steps_asked_for_are_recorded)
{
    start(10, 5, 1 << 20);
    for (uint64_t step = 0; step < 100; step++) {
        ps_trace_add(PS_TRACE_STEP, ps_trace_now(), step);
        ps_trace_add_peer(PS_TRACE_GATHER, ps_trace_now(), 0);
    }
    assert_ok(ps_trace_stop());
    const size_t n = read_back(NULL);
    assert_int_equal(count(n, PS_TRACE_STEP), 5);
    assert_int_equal(count(n, PS_TRACE_GATHER), 5);
}

IN_FOLDER(a_file_has_a_limit)
{
    const uint64_t limit = 60000;
    start(0, 0, limit);
    for (uint64_t step = 0; step < 5000; step++)
        ps_trace_add(PS_TRACE_STEP, ps_trace_now() + ps_clock_ns() * !ps_trace_on(),
                     step);
    assert_false(ps_trace_on());
    assert_ok(ps_trace_stop());
    const size_t n = read_back(NULL);
    assert_true(n * sizeof *records <= limit);
    assert_int_equal(records[n - 1].kind, PS_TRACE_FULL);
    assert_int_equal(count(n, PS_TRACE_FULL), 1);
}

static char ranges[256]; // what a profiler sees

static void range_push(const char *name)
{
    strcat(strcat(ranges, "("), name);
}

static void range_pop(void)
{
    strcat(ranges, ")");
}

IN_FOLDER(a_profiler_sees_spans_one_within_the_other)
{
    static const ps_trace_ranges profiler = {range_push, range_pop};
    ps_trace_add(PS_TRACE_WAIT, ps_trace_begin(PS_TRACE_WAIT), 0); // nobody looks
    ps_trace_show(&profiler);                                      // without a trace
    const uint64_t step = ps_trace_begin(PS_TRACE_STEP);
    ps_trace_add(PS_TRACE_FORWARD, ps_trace_begin(PS_TRACE_FORWARD), 0);
    ps_trace_begin(PS_TRACE_BACKWARD);              // it fails
    ps_trace_add(PS_TRACE_REPLY, ps_clock_ns(), 0); // was not begun so
    ps_trace_add(PS_TRACE_STEP, step, 0);
    for (int i = 0; i < 100; i++)
        ps_trace_begin(PS_TRACE_EVALUATE); // of many that fail a few are open
    start(0, 0, 1 << 20);
    ps_trace_add(PS_TRACE_SAVE, ps_trace_begin(PS_TRACE_SAVE), 0);
    ps_trace_show(NULL);
    assert_ok(ps_trace_stop());
    assert_int_equal(count(read_back(NULL), PS_TRACE_SAVE), 1);
    assert_memory_equal(ranges, "(step(forward)(backward))(evaluate(evaluate(", 44);
    assert_true(strlen(ranges) < 200);
}

static void *record_some(void *arg)
{
    pthread_setname_np(pthread_self(), "sender"); // the other thread may do so later
    for (uint64_t step = 0; step < 300; step++)
        ps_trace_add_chunk(PS_TRACE_SEND, ps_trace_now(), step, 0, 0);
    return arg;
}

/* Twice as many threads as may live at once: lanes are used again. */
IN_FOLDER(every_thread_has_a_lane)
{
    enum { THREADS = 4, ROUNDS = 2 };
    start(0, 0, 1 << 20);
    for (int round = 0; round < ROUNDS; round++) {
        ps_thread threads[THREADS];
        for (int i = 0; i < THREADS; i++)
            assert_ok(ps_thread_start(&threads[i], "sender", record_some, NULL));
        for (int i = 0; i < THREADS; i++)
            ps_thread_join(&threads[i]);
    }
    assert_ok(ps_trace_stop());
    const size_t n = read_back(NULL);
    assert_int_equal(count(n, PS_TRACE_SEND), THREADS * ROUNDS * 300);
    for (size_t i = 0; i < n; i++)
        if (records[i].kind == PS_TRACE_LANE)
            assert_memory_equal(&records[i].begin, "sender", 6);
    assert_true(count(n, PS_TRACE_LANE) >= THREADS * ROUNDS);
}

/* A limit on the size of files acts like a disk that is full after that many bytes. */
IN_FOLDER(a_full_disk_is_an_error)
{
    struct rlimit limit, old;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old, limit.rlim_cur = 10;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    start(0, 0, 1 << 20);
    ps_trace_add(PS_TRACE_STEP, ps_clock_ns(), 1);
    const ps_err err = ps_trace_stop();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_error(err, PS_ERR_IO, "File too large (ulimit -f");
    const ps_trace_options nowhere = {.path = "/nowhere/x", .role = "worker"};
    assert_int_equal(ps_trace_start(&nowhere), PS_ERR_IO);
    assert_ok(ps_trace_stop());
}

/* A coordinator whose clock is 1 ms ahead; answers take `there` and `back` ns. */
static void answer(ps_clock_sync *s, uint64_t there, uint64_t back, bool *ended)
{
    const uint64_t asked = s->asked_ns;
    ps_clock_sync_answer(s, asked, asked + there + 1000000, asked + there + back, ended);
}

IN_FOLDER(the_shortest_round_trip_tells_the_time)
{
    bool ended;
    ps_clock_sync s = {0};
    ps_clock_sync_begin(&s, 1000);
    answer(&s, 900000, 100000, &ended); // 0.4 ms off
    answer(&s, 20000, 30000, &ended);   // the best
    answer(&s, 100000, 900000, &ended);
    assert_false(ended);
    answer(&s, 50000, 50000, &ended);
    assert_true(ended && s.known);
    assert_true(s.error_ns == 25000);
    assert_true(s.known_ahead_ns == 1000000 - 5000);
    assert_true(s.asked_ns == 0);
}

IN_FOLDER(a_worse_estimate_counts_once_the_clocks_may_have_drifted)
{
    bool ended;
    ps_clock_sync s = {.known = true, .known_at_ns = 0, .error_ns = 10000};
    for (int i = 0; i < 2; i++) {
        const uint64_t second = 1000000000;
        ps_clock_sync_begin(&s, i == 0 ? second / 10 : 10 * second);
        while (s.asked_ns)
            answer(&s, 100000, 100000, &ended); // wrong by 100 us at most
        assert_true(s.error_ns == (i == 0 ? 10000 : 100000));
    }
}

IN_FOLDER(a_foreign_answer_is_ignored)
{
    bool ended;
    ps_clock_sync s = {0};
    assert_false(ps_clock_sync_answer(&s, 0, 5, 10, &ended));
    ps_clock_sync_begin(&s, 1000);
    assert_false(ps_clock_sync_answer(&s, 999, 5, 2000, &ended));
    assert_false(ps_clock_sync_answer(&s, 1000, 5, 500, &ended)); // from the future
    assert_true(s.asked_ns == 1000 && s.left == PS_CLOCK_BURST && !ended);
}
