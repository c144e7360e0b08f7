/* Which processes get a setting, where the workers are a program. */
#include "check.h"

#include "program_settings.h"

static void expect_takers(const char *setting, bool program, bool servers)
{
    const ps_setting_takers to = ps_program_setting_takers(setting);
    if (to.program != program || to.servers != servers)
        fail_msg("%s: program %d, servers %d", setting, to.program, to.servers);
}

TEST(who_takes_a_setting)
{
    for (int i = 0; i < 2; i++) { // a key, a section
        const bool section = i == 1;
        expect_takers(section ? "net={heartbeat_ms: 9}" : "net.heartbeat_ms=9", true,
                      true);
        expect_takers(section ? "server={shards: 2}" : "server.shards=2", true, true);
        expect_takers(section ? "rows={buddy: true}" : "rows.buddy=true", true, false);
        expect_takers(section ? "optimizer={lr: 1}" : "optimizer.lr=1", true, false);
        expect_takers(section ? "metrics={port: 1}" : "metrics.port=1", false, true);
        expect_takers(section ? "train={epochs: 1}" : "train.epochs=1", false, false);
        expect_takers(section ? "job={name: x}" : "job.workers=2..8", false, false);
    }
    expect_takers("job.name=x", true, true);
    for (int i = 0; i < 5; i++) // names that only begin so
        expect_takers(
            (const char *[]){"network.x=1", "net", "", "job.names=x", "=net."}[i], false,
            false);
}

TEST(a_refusal_says_what_there_is)
{
    assert_int_equal(ps_program_setting_refuse("train.epochs=3"), PS_ERR_CONFIG);
    assert_string_equal(
        ps_err_message(),
        "train.epochs=3: not a setting of a program that uses libpstrain: "
        "those are of job.name, net, server, optimizer, schedule, "
        "loss_scale, exchange, rows; psrun takes metrics for the servers");
}
