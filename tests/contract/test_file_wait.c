/* All ranks meet when rank 0 has written a file. One that does not come costs the others
 * a step's time, not a disk's. */
#include "file_wait.h"

#include "check.h"
#include "member_rig.h"

static void meet(rig_part *p)
{
    if (p->rank == 1) { // its frame has one changed byte
        rig_note(p, ps_member_barrier(p->member, "writteo", rig_soon()));
        return;
    }
    const ps_err err = ps_file_wait_written(p->member, &p->job->config, "weights");
    rig_note(p, err);
    if (p->rank == 0) ps_member_abort(p->member, err, ps_err_message());
}

TEST(who_does_not_come_is_named_after_a_steps_time)
{
    rig_job j;
    rig_part parts[RIG_MEMBERS_MAX];
    rig_open(&j, 1, 3);
    j.config.net.step_timeout_ms = 200;
    j.config.train.file_timeout_ms = 600000;
    rig_run(&j, parts, rig_serve, meet);
    for (int i = 0; i < 4; i++)
        assert_non_null(strstr(parts[i].message, "worker 1 waits in \"writteo\""));
    assert_int_equal(parts[1].err, PS_ERR_TIMEOUT); // worker 0
    rig_close(&j);
}
