/* Elastic jobs: newcomers are let in, and the others begin without those that do not
 * come. The linker puts functions in the place of the coordinator's (--wrap), by which
 * the test sees what it decides, and moves its clock. */
#include "member_rig.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include "../support/moved_clock.h"
#include "check.h"

static atomic_int expected_here; // that many workers
static sem_t asked, kept;        // whether these suffice; a place was kept for worker 0

bool __real_ps_coord_members_suffice(ps_coordinator *c, bool servers, int here,
                                     int admitted);
bool __wrap_ps_coord_members_suffice(ps_coordinator *c, bool servers, int here,
                                     int admitted);
bool __wrap_ps_coord_members_suffice(ps_coordinator *c, bool servers, int here,
                                     int admitted)
{
    const bool suffice = __real_ps_coord_members_suffice(c, servers, here, admitted);
    if (servers && here == atomic_load(&expected_here)) sem_post(&asked);
    return suffice;
}

bool __real_ps_coord_keeps_place(const ps_coordinator *c, int asked_rank);
bool __wrap_ps_coord_keeps_place(const ps_coordinator *c, int asked_rank);
bool __wrap_ps_coord_keeps_place(const ps_coordinator *c, int asked_rank)
{
    const bool keeps = __real_ps_coord_keeps_place(c, asked_rank);
    if (keeps) sem_post(&kept);
    return keeps;
}

static void await(sem_t *event)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 20;
    assert_int_equal(sem_timedwait(event, &limit), 0);
}

/* The coordinator has that many workers; then it waits for longer than it is patient. */
static void let_it_wait(int workers)
{
    atomic_store(&expected_here, workers);
    while (sem_trywait(&asked) == 0)
        ;
    await(&asked);
    test_move_clock(2000);
}

static void end_elastic(rig_part *p, int workers)
{
    rig_expect(p, ps_member_roster(p->member)->n_workers == workers, "all workers");
    if (p->role == PS_ROLE_SERVER)
        rig_note(p, ps_member_wait_end(p->member));
    else
        rig_note(p, ps_member_barrier(p->member, "end", rig_soon()));
    rig_note(p, ps_member_leave(p->member, rig_soon()));
}

static void regroup_for_a_newcomer(rig_part *p)
{
    const ps_roster *roster = ps_member_roster(p->member);
    const bool is_worker = p->role == PS_ROLE_WORKER;
    rig_expect(p, roster->n_workers == 2, "two workers at first");
    rig_expect(p, ps_member_rank(p->member) == (p->rank > 0), "ranks without a gap");
    if (is_worker && p->rank == 0) {
        pthread_barrier_wait(&rig_others_have_joined);
        const ps_deadline end = rig_soon();
        while (ps_member_newcomers(p->member) == 0 && !ps_deadline_passed(end))
            usleep(10000);
        ps_member_regroup(p->member, 2 + ps_member_newcomers(p->member));
    }
    rig_expect(p, ps_member_cause(p->member, rig_soon()) == PS_ERR_REGROUP, "to regroup");
    p->expected_workers = ps_member_next_workers(p->member);
    rig_expect(p, p->expected_workers == 3, "one more worker");
    const uint64_t nonce = roster->nonce;
    rig_expect(p, roster->n_workers == 2, "the same roster until the end of its epoch");
    ps_member_destroy(&p->member);
    rig_note(p, rig_join(p));
    if (p->err != PS_OK) return;
    rig_expect(p, ps_member_roster(p->member)->nonce != nonce, "another epoch's nonce");
    end_elastic(p, 3);
}

static void join_late(rig_part *p)
{
    rig_expect(p, ps_member_rank(p->member) == 2, "the last rank");
    end_elastic(p, 3);
}

static void begin(rig_job *j, rig_part *parts, int n)
{
    j->min_workers = 1;
    for (int i = 0; i < n; i++) {
        parts[i].job = j;
        assert_int_equal(pthread_create(&parts[i].thread, NULL, rig_run_part, &parts[i]),
                         0);
    }
}

/* too_many: that are not let in. */
static void end(rig_part *parts, int n, int too_many)
{
    for (int i = 0; i < n; i++)
        pthread_join(parts[i].thread, NULL);
    for (int i = 0; i < n; i++) {
        if (parts[i].err == PS_ERR_TIMEOUT && too_many-- > 0) continue;
        if (parts[i].err != PS_OK) fail_msg("member %d: %s", i, parts[i].message);
    }
    assert_true(too_many <= 0);
}

TEST(a_newcomer_is_let_in)
{
    rig_job j;
    rig_open(&j, 1, 4);
    rig_part parts[] = {
        {.role = PS_ROLE_SERVER, .expected_workers = 2, .run = regroup_for_a_newcomer},
        {.role = PS_ROLE_WORKER, .rank = 0, .run = regroup_for_a_newcomer},
        {.role = PS_ROLE_WORKER, .rank = 5, .run = regroup_for_a_newcomer},
        {.role = PS_ROLE_WORKER, .rank = -1, .late = true, .run = join_late}};
    pthread_barrier_init(&rig_others_have_joined, NULL, 2);
    begin(&j, parts, 4);
    end(parts, 4, 0);
    pthread_barrier_destroy(&rig_others_have_joined);
    rig_close(&j);
}

static void end_as_two(rig_part *p)
{
    rig_expect(p, ps_member_rank(p->member) == (p->rank != 0), "worker 0 has its rank");
    end_elastic(p, 2);
}

TEST(others_begin_without_those_that_do_not_come)
{
    static const struct {
        int expected, other; // 0: not given; the rank of the worker that comes first
    } cases[] = {{0, 1}, {3, 1}, {3, PS_RANK_NOT_0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_job j;
        rig_open(&j, 1, 4);
        j.config.recovery.wait_ms = 300;
        rig_part parts[] = {
            {.role = PS_ROLE_SERVER,
             .expected_workers = cases[i].expected,
             .run = end_as_two},
            {.role = PS_ROLE_WORKER, .rank = cases[i].other, .run = end_as_two},
            {.role = PS_ROLE_WORKER, .rank = 0, .run = end_as_two}};
        begin(&j, parts, 2);
        let_it_wait(1);
        await(&asked); // this may have begun before the clock was moved
        await(&asked); // no job begins without worker 0
        begin(&j, parts + 2, 1);
        let_it_wait(2);
        end(parts, 3, 0);
        rig_close(&j);
    }
}

TEST(the_last_place_is_for_worker_0)
{
    const int first[] = {1, PS_RANK_NOT_0};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        rig_job j;
        rig_open(&j, 1, 2);
        j.config.net.join_timeout_ms = 3000;
        rig_part parts[] = {
            {.role = PS_ROLE_SERVER, .run = end_as_two},
            {.role = PS_ROLE_WORKER, .rank = first[i], .run = end_as_two},
            {.role = PS_ROLE_WORKER, .rank = PS_RANK_NOT_0, .run = end_as_two},
            {.role = PS_ROLE_WORKER, .rank = 0, .run = end_as_two}};
        while (sem_trywait(&kept) == 0)
            ;
        begin(&j, parts, 3);
        await(&kept);
        begin(&j, parts + 3, 1);
        end(parts, 4, 1);
        rig_close(&j);
    }
}

int main(int argc, char **argv)
{
    sem_init(&asked, 0, 0);
    sem_init(&kept, 0, 0);
    return check_main(argc, argv, 1);
}
