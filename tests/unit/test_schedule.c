/* Learning rates against torch.optim.lr_scheduler, and at the ends. */
#include "schedule.h"

#include <math.h>

#include "../support/python.h"
#include "check.h"

static ps_err schedule(ps_schedule *s, const char *const *set, int n, uint64_t total)
{
    ps_config cfg;
    assert_ok(ps_config_load(&cfg, NULL, set, n));
    const ps_err err = ps_schedule_init(s, &cfg, total);
    ps_config_fini(&cfg);
    return err;
}

static const char *const constant[] = {"optimizer.lr=0.1"};
static const char *const steps[] = {"optimizer.lr=0.1", "schedule.name=step",
                                    "schedule.step_size=30", "schedule.gamma=0.5"};
static const char *const cosine[] = {"optimizer.lr=0.1", "schedule.name=cosine",
                                     "schedule.total=100", "schedule.min_lr=0.001"};
static const char *const linear[] = {"optimizer.lr=0.1", "schedule.name=linear",
                                     "schedule.total=80", "schedule.min_lr=0.02"};
static const char *const warm[] = {"optimizer.lr=0.1", "schedule.name=cosine",
                                   "schedule.total=100", "schedule.warmup=20",
                                   "schedule.warmup_start=0.25"};

static const char *const polynomial[] = {"optimizer.lr=0.1", "schedule.name=polynomial",
                                         "schedule.total=250", "schedule.power=2.5"};
static const char *const restarts[] = {"optimizer.lr=0.1",
                                       "schedule.name=cosine_restarts", "schedule.t_0=30",
                                       "schedule.t_mult=2", "schedule.min_lr=0.002"};
static const char *const even_restarts[] = {
    "optimizer.lr=0.1", "schedule.name=cosine_restarts", "schedule.t_0=45"};
static const char *const warm_restarts[] = {
    "optimizer.lr=0.1", "schedule.name=cosine_restarts", "schedule.t_0=40",
    "schedule.t_mult=3", "schedule.warmup=25"};
static const char *const warm_polynomial[] = {
    "optimizer.lr=0.1",   "schedule.name=polynomial", "schedule.power=0.5",
    "schedule.total=290", "schedule.warmup=40",       "schedule.warmup_start=0.1"};
static const char *const one_cycle[] = {"optimizer.lr=0.1", "schedule.name=onecycle",
                                        "schedule.total=300"};
static const char *const linear_cycle[] = {"optimizer.lr=0.1",
                                           "schedule.name=onecycle",
                                           "schedule.total=300",
                                           "schedule.pct_start=0.17",
                                           "schedule.anneal=linear",
                                           "schedule.div_factor=10",
                                           "schedule.final_div_factor=100"};
static const char *const three_phases[] = {"optimizer.lr=0.1", "schedule.name=onecycle",
                                           "schedule.total=300", "schedule.pct_start=0.4",
                                           "schedule.three_phase=true"};
static const char *const fall_alone[] = {"optimizer.lr=0.1", "schedule.name=onecycle",
                                         "schedule.total=300", "schedule.pct_start=0"};

/* In the order of schedule_vectors.py. */
static const struct {
    const char *const *set;
    int n;
} cases[] = {{constant, 1},      {steps, 4},           {cosine, 4},    {linear, 4},
             {warm, 5},          {polynomial, 4},      {restarts, 5},  {even_restarts, 3},
             {warm_restarts, 5}, {warm_polynomial, 6}, {one_cycle, 3}, {linear_cycle, 7},
             {three_phases, 5},  {fall_alone, 4}};
enum { N_CASES = sizeof cases / sizeof cases[0], N_STEPS = 300 };

TEST(rates_are_pytorchs)
{
    FILE *in = python_output("schedule_vectors.py");
    if (!in) skip();
    double wanted[N_CASES][N_STEPS];
    assert_int_equal(fread(wanted, sizeof wanted, 1, in), 1);
    fclose(in);
    for (int c = 0; c < N_CASES; c++) {
        ps_schedule s;
        assert_ok(schedule(&s, cases[c].set, cases[c].n, 0));
        // PyTorch's cosine rises again after its end; here the last rate stays
        const int n = cases[c].set == cosine || cases[c].set == warm ? 100 : N_STEPS;
        for (int t = 0; t < n; t++) {
            double rate = ps_schedule_lr(&s, (uint64_t)t);
            if (!(fabs(rate - wanted[c][t]) <= 1e-12 * wanted[c][t] + 1e-16))
                fail_msg("case %d step %d: %.17g, PyTorch %.17g", c, t, rate,
                         wanted[c][t]);
        }
    }
}

TEST(the_last_rate_stays)
{
    ps_schedule s;
    assert_ok(schedule(&s, cosine, 4, 0));
    assert_float_equal(ps_schedule_lr(&s, 50), (0.1 + 0.001) / 2, 1e-15);
    assert_float_equal(ps_schedule_lr(&s, 100), 0.001, 1e-15);
    assert_float_equal(ps_schedule_lr(&s, UINT64_MAX), 0.001, 1e-15);
    assert_ok(schedule(&s, linear, 4, 0));
    assert_float_equal(ps_schedule_lr(&s, 40), 0.06, 1e-15);
    assert_float_equal(ps_schedule_lr(&s, 81), 0.02, 1e-15);
}

TEST(past_its_end_one_cycle_stays_at_the_last_rate)
{
    ps_schedule s;
    assert_ok(schedule(&s, one_cycle, 3, 0));
    assert_float_equal(ps_schedule_lr(&s, 299), 0.1 / 25 / 1e4, 1e-18);
    assert_float_equal(ps_schedule_lr(&s, 5000), 0.1 / 25 / 1e4, 1e-18);
    const char *set[] = {"schedule.name=onecycle"};
    for (uint64_t total = 0; total < 4; total++) { // jobs that are over at once
        assert_ok(schedule(&s, set, 1, total));
        assert_true(isfinite(ps_schedule_lr(&s, 0)) && isfinite(ps_schedule_lr(&s, 1)));
    }
}

TEST(restarts_go_on_for_ever)
{
    ps_schedule s;
    assert_ok(schedule(&s, restarts, 5, PS_STEPS_UNKNOWN));
    assert_float_equal(ps_schedule_lr(&s, 30 + 60), 0.1, 0);
    assert_float_equal(ps_schedule_lr(&s, 30 + 60 + 120), 0.1, 0);
    assert_true(isfinite(ps_schedule_lr(&s, UINT64_MAX)));
}

TEST(what_makes_no_sense_is_refused)
{
    static const struct {
        const char *set, *text;
    } bad[] = {
        {"schedule={name: onecycle, warmup: 5}", "schedule.warmup: has to be 0"},
        {"schedule={name: onecycle, three_phase: true, pct_start: 0.6}",
         "schedule.pct_start: has to be at most 0.5"},
        {"schedule.t_0=0", "schedule.t_0: 0 is below 1"},
        {"schedule.anneal=cosine", "schedule.anneal"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ps_config cfg;
        assert_error(ps_config_load(&cfg, NULL, &bad[i].set, 1), PS_ERR_CONFIG,
                     bad[i].text);
        ps_config_fini(&cfg);
    }
}

TEST(the_whole_job_is_the_default_length)
{
    const char *set[] = {"optimizer.lr=1", "schedule.name=linear", "schedule.warmup=10"};
    ps_schedule s;
    assert_ok(schedule(&s, set, 3, 30));
    assert_float_equal(ps_schedule_lr(&s, 0), 0.0, 0);
    assert_float_equal(ps_schedule_lr(&s, 5), 0.5, 1e-15);
    assert_float_equal(ps_schedule_lr(&s, 10), 1.0, 1e-15);
    assert_float_equal(ps_schedule_lr(&s, 20), 0.5, 1e-15);
    assert_ok(schedule(&s, set, 3, 0)); // nothing to train
}

TEST(a_schedule_that_needs_an_end_says_so)
{
    const char *set[] = {"schedule.name=linear"};
    ps_schedule s;
    assert_error(schedule(&s, set, 1, PS_STEPS_UNKNOWN), PS_ERR_CONFIG,
                 "schedule.name: linear");
    assert_non_null(strstr(ps_err_message(), "schedule.total"));
    assert_ok(schedule(&s, linear, 4, PS_STEPS_UNKNOWN));
    assert_ok(schedule(&s, steps, 4, PS_STEPS_UNKNOWN));
}
