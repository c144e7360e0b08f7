/* A request is answered once: with DONE when all of it is done, else with FAIL. */
#include "coord_board.h"

#include "check.h"
#include "job_keys.h"
#include "sync_codec.h"

typedef struct answers {
    int n;
    ps_control last;
} answers;

static void take(void *owner, const ps_control_id *to, const ps_control *answer)
{
    answers *a = owner;
    if (answer->kind == PS_CONTROL_ORDER) return;
    a->n++;
    a->last = *answer;
}

static void ask(ps_coord_board *b, ps_role role, ps_control c, const char *key,
                const ps_mp_writer *w)
{
    const ps_coord_asker from = {.role = role};
    c.request = 7;
    if (key) assert_ok(ps_control_set_name(&c, key));
    if (w) c.value = w->base;
    if (w) c.bytes = w->used;
    ps_coord_board_request(b, &from, &c);
}

TEST(what_the_policy_refuses_is_not_done)
{
    const uint64_t batches[] = {4, 4};
    const ps_sync_rules rules = {
        .kind = PS_POLICY_ASP, .n_workers = 2, .total = 9, .stretch = 9};
    const ps_control put = {.kind = PS_CONTROL_PUT};
    answers a = {0};
    ps_coord_board *b;
    assert_ok(ps_coord_board_create(2, take, &a, &b));
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_sync_rules_write(&w, &rules, 1, batches);
    ask(b, PS_ROLE_WORKER, put, PS_JOB_KEY_POLICY, &w);
    assert_true(a.n == 1 && a.last.kind == PS_CONTROL_DONE);
    ask(b, PS_ROLE_SERVER,
        (ps_control){.kind = PS_CONTROL_PUSHED, .pushed = {0, 0, 1, 0, 0, 1}}, NULL,
        NULL);
    assert_int_equal(a.n, 1); // it has no answer
    ps_mp_writer_fini(&w);
    ps_mp_writer_init(&w);
    ps_sync_batches_write(&w, batches, 1); // of one worker of two
    ask(b, PS_ROLE_WORKER, put, PS_JOB_KEY_POLICY_BATCHES, &w);
    assert_true(a.n == 2 && a.last.kind == PS_CONTROL_FAIL && a.last.request == 7);
    ask(b, PS_ROLE_WORKER, put, "any", &w);
    assert_true(a.n == 3 && a.last.kind == PS_CONTROL_DONE);
    ps_mp_writer_fini(&w);
    assert_ok(ps_coord_board_expire(b));
    ps_coord_board_destroy(&b);
}

/* A job may have any number of tables one after the other: of each, all keys go. */
TEST(the_keys_of_old_tables_go)
{
    answers a = {0};
    ps_coord_board *b;
    assert_ok(ps_coord_board_create(1, take, &a, &b));
    for (int table = 1; table <= 4; table++) {
        char key[PS_CONTROL_NAME_MAX];
        snprintf(key, sizeof key, "table/%d/job/tensors", table);
        ask(b, PS_ROLE_WORKER, (ps_control){.kind = PS_CONTROL_PUT}, key, NULL);
        for (int old = 1; old <= table; old++) {
            snprintf(key, sizeof key, "table/%d/job/tensors", old);
            const int before = a.n;
            ask(b, PS_ROLE_SERVER, (ps_control){.kind = PS_CONTROL_GET}, key, NULL);
            assert_int_equal(a.n - before, old >= table - 1); // else it waits
        }
    }
    ps_coord_board_destroy(&b);
}
