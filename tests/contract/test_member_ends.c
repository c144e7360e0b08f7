/* Jobs in which a member gives up, goes or is late: the others learn why. */
#include "member_rig.h"

#include <malloc.h>
#include <poll.h>

#include "check.h"

static void assert_told(const rig_part *p, const char *words)
{
    if (!strstr(p->message, words))
        fail_msg("\"%s\" was expected in \"%s\"", words, p->message);
}

/* Runs a job of three workers, one of which ends it; all others learn who, and why. told:
 * it learns why, too. */
static void assert_end(int servers, void (*work)(rig_part *), int rank, bool told,
                       const char *why)
{
    rig_job j;
    rig_part parts[RIG_MEMBERS_MAX];
    char who[16];
    const int its_own = servers + rank;
    snprintf(who, sizeof who, "worker %d", rank);
    rig_open(&j, servers, 3);
    rig_run(&j, parts, servers ? rig_serve : NULL, work);
    for (int i = 0; i < servers + 3; i++) {
        if (i == its_own && !told) continue;
        assert_int_equal(parts[i].err, PS_ERR_PEER);
        assert_told(&parts[i], why);
        if (i != its_own) assert_told(&parts[i], who);
    }
    rig_close(&j);
}

static void give_up(rig_part *p)
{
    if (p->rank == 1) {
        ps_member_abort(p->member, PS_ERR_PEER, "the loss is not finite at step 3");
        rig_note(p, ps_member_check(p->member));
    } else {
        rig_note(p, ps_member_barrier(p->member, "never", rig_soon()));
        struct pollfd item = {.fd = ps_member_abort_fd(p->member), .events = POLLIN};
        rig_expect(p, poll(&item, 1, 0) == 1, "a readable abort descriptor");
    }
}

/* Else the barrier would end with its own deadline. */
TEST(an_abort_reaches_everybody_at_once)
{
    assert_end(2, give_up, 1, true, "the loss is not finite at step 3");
}

static void host_gives_up(rig_part *p)
{
    if (p->rank == 0)
        ps_member_abort(p->member, PS_ERR_PEER,
                        "the disk is full"); // it is destroyed at once
    else
        rig_note(p, ps_member_barrier(p->member, "never", rig_soon()));
}

TEST(the_hosts_own_abort_gets_out)
{
    assert_end(0, host_gives_up, 0, false, "the disk is full");
}

static void go_without_a_word(rig_part *p)
{
    if (p->rank == 2) return; // destroyed without leave
    rig_note(p, ps_member_barrier(p->member, "never", rig_soon()));
}

TEST(an_end_without_goodbye_aborts)
{
    assert_end(1, go_without_a_word, 2, false, "ended before the job was over");
}

/* A busy machine may bring no answer in time: then the call is repeated, for longer. */
static void expect_timeout_of_get(rig_part *p)
{
    void *value;
    size_t bytes;
    bool named = false;
    for (int ms = 100; !named && ms < 20000; ms *= 4) {
        ps_err err =
            ps_member_get(p->member, "unset", &value, &bytes, ps_deadline_in_ms(ms));
        rig_expect(p, err == PS_ERR_TIMEOUT, "a timeout of get");
        named = strstr(ps_err_message(), "\"unset\"") != NULL;
    }
    rig_expect(p, named, "the key");
}

static void wait_for_a_late_one(rig_part *p)
{
    // worker 0 asks while worker 2 waits
    const ps_deadline limit = rig_soon();
    bool named = p->rank != 0;
    if (p->rank == 2) {
        ps_err err = ps_member_barrier(p->member, "b", ps_deadline_in_ms(3000));
        rig_expect(p, err == PS_ERR_TIMEOUT, "a timeout");
    }
    while (!named && !ps_deadline_passed(limit)) {
        ps_err err = ps_member_barrier(p->member, "b", ps_deadline_in_ms(300));
        rig_expect(p, err == PS_ERR_TIMEOUT, "a timeout");
        named = strstr(ps_err_message(), "missing: 1") != NULL;
    }
    rig_expect(p, named, "the missing rank");
    if (p->rank != 1) expect_timeout_of_get(p);
    rig_note(p, ps_member_barrier(p->member, "together", rig_soon()));
    rig_note(p, ps_member_leave(p->member, rig_soon()));
}

TEST(a_timeout_names_who_is_missing)
{
    rig_run_well(1, 3, rig_serve, wait_for_a_late_one);
}

static void wait_for_one_that_left(rig_part *p)
{
    if (p->rank == 1) {
        rig_note(p, ps_member_leave(p->member, rig_soon()));
        return;
    }
    ps_err err = ps_member_barrier(p->member, "b", rig_soon());
    rig_expect(p, err == PS_ERR_PEER, "an error at once");
    // others may have left with their answer before the last one asks
    bool named = strstr(ps_err_message(), "worker 1 has left") ||
                 strstr(ps_err_message(), "worker 0 has left");
    rig_expect(p, named, "the rank that has left");
    rig_note(p, ps_member_leave(p->member, rig_soon()));
}

TEST(a_barrier_does_not_wait_for_one_that_left)
{
    rig_run_well(0, 3, NULL, wait_for_one_that_left);
}

static void end_without_goodbye(rig_part *p)
{
    if (p->role == PS_ROLE_WORKER && p->rank == 1) ps_member_destroy(&p->member);
    if (p->member) ps_member_barrier(p->member, "b", rig_soon());
}

/* Of an allocator that looks for mistakes, where there is one. */
extern size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

/* Bytes in use after that many jobs of which a worker dies. With psrun --restarts, the
 * coordinator's process is the same for all of them. */
static size_t in_use_after(int deaths)
{
    for (int i = 0; i < deaths; i++) {
        rig_job j;
        rig_part parts[RIG_MEMBERS_MAX];
        rig_open(&j, 1, 2);
        rig_run(&j, parts, end_without_goodbye, end_without_goodbye);
        rig_close(&j);
    }
    if (__sanitizer_get_current_allocated_bytes)
        return __sanitizer_get_current_allocated_bytes();
    return mallinfo2().uordblks;
}

TEST(deaths_leave_nothing_in_memory)
{
    enum { BYTES = 32 << 10 }; // what threads keep for themselves; not for each death
    const size_t before = in_use_after(20);
    const size_t after = in_use_after(60);
    if (after > before + BYTES) fail_msg("%zu, then %zu bytes", before, after);
}
