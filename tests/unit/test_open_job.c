#include "check.h"
#include "mem.h"
#include "open_job.h"

static void add(ps_open_job *job, const char *name, ps_dims dims, int group)
{
    int i;
    assert_ok(ps_tensor_table_add(&job->table, name, dims, PS_TENSOR_WEIGHT, 1, &i));
    job->table.tensors[i].group = group;
}

static void set(ps_open_job *job, int i, const char *text)
{
    free(job->settings[i]);
    assert_ok(ps_mem_strdup(&job->settings[i], text));
}

static ps_open_job example(void)
{
    ps_open_job job = {.plan_hash = 77, .mean = true, .n_settings = 2, .n_groups = 2};
    int i;
    job.settings = calloc(2, sizeof *job.settings);
    set(&job, 0, "optimizer.name=adam");
    set(&job, 1, "net.heartbeat_ms=400");
    job.numbers = calloc(2, sizeof *job.numbers);
    job.numbers[1].lr = 0.125;
    add(&job, "fc.weight", (ps_dims){.n = 2, .d = {3, 5}}, 0);
    add(&job, "fc.scale", (ps_dims){.n = 0}, 1);
    assert_ok(ps_tensor_table_add_buffer(&job.table, "mean", (ps_dims){.n = 1, .d = {9}},
                                         PS_TENSOR_BUFFER, &i));
    return job;
}

TEST(test_round_trip)
{
    ps_open_job job = example(), read;
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    assert_ok(ps_open_job_write(&job, &w));
    assert_ok(ps_open_job_read(w.base, w.used, &read));
    assert_ok(ps_open_job_compare(&job, &read, 1));
    assert_int_equal(read.plan_hash, 77);
    assert_int_equal(read.table.arena_count, 32);
    assert_int_equal(read.table.tensors[1].group, 1);
    assert_true(read.numbers[1].lr == 0.125);
    ps_open_job_fini(&read);
    // When it is cut anywhere, it is refused. When one byte is changed, it is refused or
    // read.
    for (size_t n = 0; n < w.used; n++)
        assert_int_equal(ps_open_job_read(w.base, n, &read), PS_ERR_PROTOCOL);
    for (size_t i = 0; i < w.used; i++) {
        w.base[i] ^= 0x55;
        if (ps_open_job_read(w.base, w.used, &read) == PS_OK) ps_open_job_fini(&read);
        w.base[i] ^= 0x55;
    }
    ps_mp_writer_fini(&w);
    ps_open_job_fini(&job);
}

static void differs(const ps_open_job *a, const ps_open_job *b, const char *text)
{
    assert_error(ps_open_job_compare(a, b, 3), PS_ERR_PEER, text);
}

TEST(test_compare)
{
    ps_open_job a = example(), b = example();
    set(&b, 1, "net.heartbeat_ms=100"); // may differ
    assert_ok(ps_open_job_compare(&a, &b, 3));
    set(&b, 0, "optimizer.name=sgd");
    differs(&a, &b, "worker 3 has another optimizer.name than worker 0");
    set(&b, 0, "optimizer.name=adam");
    b.numbers[1].lr = 0.25;
    differs(&a, &b, "parameter group 1 (lr 0.125 there, 0.25 here)");
    b.numbers[1].lr = 0.125;
    b.mean = false;
    differs(&a, &b, "worker 3 wants the sum of the gradients, worker 0 the mean");
    b.mean = true;
    b.plan_hash++;
    differs(&a, &b, "other chunks");
    b.plan_hash--;
    add(&b, "more", (ps_dims){.n = 1, .d = {1}}, 0);
    differs(&a, &b,
            "worker 3 has 3 tensors, worker 0 has 2: worker 3 alone has more (1)");
    assert_error(ps_open_job_compare(&b, &a, 3), PS_ERR_PEER,
                 "worker 0 alone has more (1)");
    b.table.tensors[0].dims.d[1] = 6;
    differs(&a, &b, "tensor 0 is fc.weight (3, 6), not fc.weight (3, 5)");
    ps_open_job_fini(&a);
    ps_open_job_fini(&b);
}

/* All open jobs of one size join with the same settings, whatever a program chooses. */
TEST(test_config)
{
    static const char *const a[] = {"job.workers=3", "optimizer.name=adam",
                                    "net.heartbeat_ms=100"};
    static const char *const b[] = {"job.workers=3", "exchange.codec=int8"};
    ps_config local_a, local_b, defaults_a, defaults_b, view_a, view_b;
    assert_ok(ps_config_load(&local_a, NULL, a, 3));
    assert_ok(ps_config_load(&local_b, NULL, b, 2));
    assert_string_equal(ps_config_difference(&local_a, &local_b), "optimizer.name");
    assert_ok(ps_open_job_config(&local_a, &defaults_a, &view_a));
    assert_ok(ps_open_job_config(&local_b, &defaults_b, &view_b));
    assert_null(ps_config_difference(&view_a, &view_b));
    assert_true(ps_config_hash(&view_a) == ps_config_hash(&view_b));
    assert_int_equal(view_a.job.workers, 3);
    assert_int_equal(view_a.net.heartbeat_ms, 100);
    ps_config_fini(&local_a);
    ps_config_fini(&local_b);
    ps_config_fini(&defaults_a);
    ps_config_fini(&defaults_b);
}
