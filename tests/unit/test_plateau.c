/* Learning rates that follow evaluations, against torch.optim.lr_scheduler's
 * ReduceLROnPlateau: the same bits. */
#include "plateau.h"

#include <math.h>

#include "../support/python.h"
#include "check.h"

/* In the order of plateau_vectors.py. */
static const char *const cases[][5] = {
    {NULL},
    {"schedule.factor=0.5", "schedule.patience=0", "schedule.threshold=0", NULL},
    {"schedule={name: plateau, factor: 0.3, patience: 2}", "schedule.threshold=0.05",
     "schedule.cooldown=3", "schedule.min_lr=1e-5", NULL},
    {"schedule.factor=0.9", "schedule.patience=1", "schedule.threshold=1",
     "schedule.cooldown=1", NULL},
    {"schedule.metric=accuracy", "schedule.factor=0.7", "schedule.patience=3",
     "schedule.threshold=0.01", NULL},
    {"schedule={name: plateau, metric: accuracy, factor: 0}", "schedule.patience=5",
     "schedule.threshold=0.1", "schedule.min_lr=0.004", NULL},
};
enum { N_CASES = sizeof cases / sizeof cases[0], N = 200 };

typedef struct evaluation {
    double value, rates[2];
} evaluation;

static void load(ps_config *cfg, const char *const *more)
{
    const char *sets[9] = {"schedule.name=plateau", "optimizer.lr=0.1",
                           "optimizer.groups=[{match: ['*'], lr: 0.003}]",
                           "model.layers=[linear: 2]"};
    int n = 4;
    for (; *more; more++)
        sets[n++] = *more;
    assert_ok(ps_config_load(cfg, NULL, sets, n));
}

static void follow(int c, const evaluation *wanted)
{
    ps_config cfg;
    ps_optimizer opt;
    ps_group_numbers numbers[2];
    ps_plateau p = {.best = NAN};
    load(&cfg, cases[c]);
    ps_optimizer_init(&opt, &cfg);
    assert_int_equal(ps_plateau_groups(&cfg), 2);
    for (int i = 0; i < N; i++) {
        (void)ps_plateau_step(&p, &cfg.schedule, wanted[i].value);
        ps_plateau_numbers(&cfg, &opt, p.cuts, numbers);
        for (int g = 0; g < 2; g++)
            if (numbers[g].lr != wanted[i].rates[g])
                fail_msg("case %d evaluation %d group %d: %.17g, PyTorch %.17g", c, i, g,
                         numbers[g].lr, wanted[i].rates[g]);
    }
    assert_true(p.cuts > 0);
    ps_config_fini(&cfg);
}

TEST(rates_are_pytorchs)
{
    static evaluation wanted[N_CASES][N];
    FILE *in = python_output("plateau_vectors.py");
    if (!in) skip();
    const size_t got = fread(wanted, sizeof wanted, 1, in);
    fclose(in);
    assert_int_equal(got, 1);
    for (int c = 0; c < N_CASES; c++)
        follow(c, wanted[c]);
}

/* A state from a file may claim any number of cuts. */
TEST(many_cuts_end)
{
    ps_config_schedule c = {.factor = 0.999999, .min_lr = 0};
    const double rate = ps_plateau_rate(&c, 0.1, INT64_MAX);
    assert_true(rate > 0 && rate * (1 - c.factor) <= 1e-8);
    c.factor = 0;
    assert_true(ps_plateau_rate(&c, 1, INT64_MAX) == 0);
}
