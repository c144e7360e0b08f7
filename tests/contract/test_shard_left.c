/* Workers that leave in order after different numbers of steps. A worker that still waits
 * for them is told at once, and no other is disturbed. The workers are bare DEALER
 * sockets. */
#include "bare_job.h"
#include "check.h"

enum { CHUNK = 3 };

static void say_short(bare_job *b, int kind, int rank, uint32_t chunk, uint64_t step)
{
    ps_wire_header h = bare_header(b, kind, rank, chunk);
    h.step = step;
    bare_send(b->socket[rank], &h, NULL, 0);
}

static void say_bye(bare_job *b, int rank)
{
    say_short(b, PS_MSG_BYE, rank, 0, 0);
    assert_int_equal(bare_answer(b->socket[rank], NULL, 0).kind, PS_MSG_LEFT);
}

static void expect_weights(bare_job *b, int rank, uint64_t version)
{
    const ps_wire_header h = bare_answer(b->socket[rank], NULL, 0);
    assert_int_equal(h.kind, PS_MSG_WEIGHTS);
    assert_int_equal(h.step, version);
}

/* Both workers push the chunk in n steps. */
static void make_steps(bare_job *b, uint64_t n)
{
    for (uint64_t step = 0; step < n; step++) {
        for (int r = 0; r < 2; r++)
            bare_send_chunk(b, PS_MSG_PUSH, r, CHUNK, step, 1.0f);
        for (int r = 0; r < 2; r++)
            expect_weights(b, r, step + 1);
    }
}

static void begin(bare_job *b, uint64_t steps)
{
    bare_open(b, 2);
    bare_begin(b);
    make_steps(b, steps);
}

/* The worker gets one error, and the members learn it. The failure is not one that
 * another try would mend. */
static void expect_end(bare_job *b, int rank, const char *part)
{
    char text[600] = "";
    const ps_wire_header h = bare_answer(b->socket[rank], text, sizeof text - 1);
    assert_int_equal(h.kind, PS_MSG_ERROR);
    if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);
    for (int r = 0; r < 2; r++)
        assert_int_equal(ps_member_cause(b->member[r], ps_deadline_in_ms(5000)),
                         PS_ERR_ARG);
    bare_close(b);
}

TEST(a_push_after_anothers_goodbye_ends_the_job)
{
    bare_job b;
    begin(&b, 2);
    say_bye(&b, 0);
    bare_hello(&b, 1); // was told nothing
    bare_send_chunk(&b, PS_MSG_PUSH, 1, CHUNK, 2, 1.0f);
    expect_end(
        &b, 1,
        "worker 0 has ended before step 3, and worker 1 waits for its gradients: every "
        "rank must make the same number of steps");
}

TEST(a_goodbye_after_anothers_push_ends_the_job)
{
    bare_job b;
    begin(&b, 0);
    bare_send_chunk(&b, PS_MSG_PUSH, 0, CHUNK, 0, 1.0f);
    bare_hello(&b, 0); // the shard has the push
    say_bye(&b, 1);
    expect_end(&b, 0, "worker 1 has ended before step 1, and worker 0 waits");
}

/* A worker may push a step before it has the answer to the step before. */
TEST(an_early_push_counts_too)
{
    bare_job b;
    begin(&b, 1);
    bare_send_chunk(&b, PS_MSG_PUSH, 0, CHUNK, 1, 1.0f);
    bare_send_chunk(&b, PS_MSG_PUSH, 0, CHUNK, 2, 1.0f);
    bare_send_chunk(&b, PS_MSG_PUSH, 1, CHUNK, 1, 1.0f);
    expect_weights(&b, 0, 2);
    expect_weights(&b, 1, 2);
    say_bye(&b, 1);
    expect_end(&b, 0, "before step 3, and worker 0 waits for its gradients");
}

TEST(exact_weights_are_for_all)
{
    for (int late = 0; late < 2; late++) {
        bare_job b;
        ps_chunk_codec codec;
        bare_open_with(&b, 2, (const char *const[]){"exchange.codec=int8"}, 1);
        bare_begin(&b);
        const uint32_t c = bare_coded_chunk(&b, &codec);
        if (late) say_bye(&b, 0);
        say_short(&b, PS_MSG_EXACT, 1, c, 0);
        if (!late) bare_hello(&b, 1);
        if (!late) say_bye(&b, 0);
        expect_end(&b, 1, "worker 0 has ended, and worker 1 waits for the exact weights");
    }
}

/* What needs no other worker is still answered: repetitions, weights, goodbyes. */
TEST(who_needs_nobody_is_not_disturbed)
{
    bare_job b;
    begin(&b, 2);
    say_bye(&b, 1);
    say_bye(&b, 1); // its answer was lost
    bare_send_chunk(&b, PS_MSG_PUSH, 0, CHUNK, 1, 1.0f);
    expect_weights(&b, 0, 2);
    say_short(&b, PS_MSG_PULL, 0, CHUNK, 2);
    expect_weights(&b, 0, 2);
    bare_hello(&b, 0);
    say_bye(&b, 0);
    for (int r = 0; r < 2; r++)
        assert_ok(ps_member_check(b.member[r]));
    bare_close(&b);
}
