/* Rounds of the policy local and their fragments, counted one by one for every small job.
 */
#include "check.h"
#include "job_start.h"
#include "local_steps.h"

static void load(ps_config *cfg, const char *const *sets, int n)
{
    assert_ok(ps_config_load(cfg, NULL, sets, n));
}

/* A round begins where the one before has ended, and has its number. */
static void check_job(const ps_config *cfg, uint64_t total)
{
    uint64_t round = 0, in_round = 0;
    for (uint64_t step = 0; step < total; step++) {
        assert_true(ps_local_steps_fresh(cfg, 0, step, total) == (in_round == 0));
        assert_int_equal(ps_local_steps_round(cfg, step), round);
        in_round++;
        const bool alone = step < (uint64_t)cfg->sync.local_after;
        const bool ends =
            alone || in_round == (uint64_t)cfg->sync.local_steps || step + 1 == total;
        assert_true(ps_local_steps_sends(cfg, 0, step, total) == ends);
        if (!ends) continue;
        round++;
        in_round = 0;
    }
    assert_int_equal(ps_local_steps_rounds(cfg, total), round);
}

TEST(rounds_cover_every_step_once)
{
    const char *const sets[] = {"sync.policy=local"};
    ps_config cfg;
    load(&cfg, sets, 1);
    for (int k = 1; k <= 6; k++)
        for (int after = 0; after <= 7; after++)
            for (uint64_t total = 0; total <= 20; total++) {
                cfg.sync.local_steps = k;
                cfg.sync.local_after = after;
                check_job(&cfg, total);
            }
    ps_config_fini(&cfg);
}

typedef struct sent {
    uint64_t rounds; // how many rounds have sent the fragment
    uint64_t step;   // after which it was sent last; rounds 0: never
    bool waits;      // no steps are made until it has arrived
} sent;

/* Checks what must hold in every step, given what was sent before it. */
static void check_step(const ps_config *cfg, const sent *before, uint64_t step,
                       uint64_t total)
{
    const uint64_t overlap = (uint64_t)cfg->sync.overlap;
    const uint64_t round = ps_local_steps_round(cfg, step);
    uint32_t ahead = 0, on_the_way = 0;
    for (uint32_t f = 0; f < (uint32_t)cfg->sync.fragments; f++) {
        const sent *s = &before[f];
        const bool away =
            s->rounds > 0 && !s->waits && step > s->step && step - s->step <= overlap;
        const bool fresh =
            step == 0 || (s->rounds > 0 && s->step + 1 == step && s->waits);
        assert_true(ps_local_steps_awaits(cfg, f, step, total) == away);
        assert_true(ps_local_steps_fresh(cfg, f, step, total) == fresh);
        assert_true(s->rounds == round || s->rounds == round + 1);
        if (s->rounds > round) assert_int_equal(f, ahead); // the first ones
        ahead += s->rounds > round;
        on_the_way += away;
    }
    assert_int_equal(ps_local_steps_ahead(cfg, step, total), ahead);
    assert_true(on_the_way <= 1);
}

/* Notes what is sent after the step. */
static void send_step(const ps_config *cfg, sent *all, uint64_t step, uint64_t total)
{
    const uint32_t n = (uint32_t)cfg->sync.fragments;
    const uint64_t k = (uint64_t)cfg->sync.local_steps;
    const bool alone = step < (uint64_t)cfg->sync.local_after || k == 1;
    const bool at_once = alone || step + 1 == total;
    uint32_t together = 0;
    for (uint32_t f = 0; f < n; f++) {
        if (!ps_local_steps_sends(cfg, f, step, total)) continue;
        // between two rounds of K steps a fragment has the changes of K steps
        if (!at_once && all[f].rounds > (uint64_t)cfg->sync.local_after)
            assert_int_equal(step - all[f].step, k);
        const uint64_t overlap = ps_local_steps_overlap(cfg, step, total);
        assert_int_equal(overlap, at_once ? 0 : (uint64_t)cfg->sync.overlap);
        all[f] = (sent){all[f].rounds + 1, step, overlap == 0};
        together++;
    }
    assert_true(at_once ? together == n : together <= 1);
}

static void check_fragments(const ps_config *cfg, uint64_t total)
{
    sent all[PS_MAX_FRAGMENTS] = {0};
    for (uint64_t step = 0; step < total; step++) {
        check_step(cfg, all, step, total);
        send_step(cfg, all, step, total);
    }
    for (uint32_t f = 0; f < (uint32_t)cfg->sync.fragments; f++) {
        assert_int_equal(all[f].rounds, ps_local_steps_rounds(cfg, total));
        assert_true(ps_local_steps_fresh(cfg, f, total, total)); // all jobs end like this
    }
}

/* In each round each fragment is sent once, in order, K steps after it was sent last. The
 * job's end sends all. No two are on their way together. */
TEST(fragments_take_turns)
{
    const char *const sets[] = {"sync.policy=local"};
    ps_config cfg;
    load(&cfg, sets, 1);
    for (int64_t k = 1; k <= 9; k++)
        for (int64_t n = 1; n <= k; n++)
            for (int64_t overlap = 0; overlap < k / n; overlap++)
                for (int64_t after = 0; after <= 3; after++)
                    for (uint64_t total = 0; total <= 30; total++) {
                        cfg.sync.local_steps = k;
                        cfg.sync.fragments = n;
                        cfg.sync.overlap = overlap;
                        cfg.sync.local_after = after;
                        check_fragments(&cfg, total);
                    }
    ps_config_fini(&cfg);
}

/* The picture in local_steps.h. */
TEST(two_fragments_in_six_steps)
{
    const char *const sets[] = {"sync.policy=local", "sync.local_steps=6",
                                "sync.fragments=2", "exchange.name=ps"};
    static const char *const after[] = {"", "",  "0", "", "",  "1", "",
                                        "", "0", "",  "", "1", "",  "01"};
    ps_config cfg;
    load(&cfg, sets, 4);
    for (uint64_t step = 0; step < 14; step++)
        for (uint32_t f = 0; f < 2; f++)
            assert_true(ps_local_steps_sends(&cfg, f, step, 14) ==
                        (strchr(after[step], '0' + (int)f) != NULL));
    ps_config_fini(&cfg);
}

/* The exchange is configured as a job in bsp with the outer optimizer. Other keys stay.
 */
TEST(the_exchange_has_the_outer_optimizer)
{
    const char *const sets[] = {
        "sync.policy=local",        "sync.outer_lr=0.7",    "sync.outer_momentum=0.9",
        "sync.outer_nesterov=true", "optimizer.name=adamw", "optimizer.clip_norm=1",
        "schedule.name=cosine",     "loss_scale.use=on",    "exchange.codec=int8"};
    ps_config cfg, outer;
    load(&cfg, sets, 9);
    ps_local_steps_outer(&outer, &cfg);
    assert_false(ps_local_steps_on(&outer));
    assert_int_equal(outer.optimizer.name, PS_OPTIMIZER_SGD);
    assert_true(outer.optimizer.lr == 0.7 && outer.optimizer.momentum == 0.9);
    assert_true(outer.optimizer.nesterov && outer.optimizer.clip_norm == 0);
    assert_true(outer.optimizer.weight_decay == 0);
    assert_int_equal(outer.schedule.name, PS_SCHEDULE_CONSTANT);
    assert_int_equal(outer.loss_scale.use, PS_SWITCH_OFF);
    assert_int_equal(outer.exchange.codec, PS_CODEC_INT8);
    assert_int_equal(outer.sync.fragments, 1);
    ps_config_fini(&cfg);
}

/* A late change is added: no worker's change is thrown away. */
TEST(with_a_quorum_the_exchange_is_backup)
{
    const char *const sets[] = {"sync.policy=local", "exchange.name=ps", "job.workers=5",
                                "sync.quorum=3", "sync.grace_ms=70"};
    ps_config cfg, outer;
    load(&cfg, sets, 5);
    ps_local_steps_outer(&outer, &cfg);
    assert_int_equal(outer.sync.policy, PS_POLICY_BACKUP);
    assert_int_equal(outer.sync.late, PS_LATE_ADD);
    assert_int_equal(outer.sync.backup, 2);
    assert_int_equal(outer.sync.grace_ms, 70);
    // It goes on between rounds, with a number above 0.
    cfg.sync.local_steps = 8;
    const uint64_t steps[] = {0, 3, 8, 9}, rounds[] = {0, 1, 1, 2};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ps_local_steps_round(&cfg, steps[i]), rounds[i]);
        assert_int_equal(ps_local_steps_ahead(&cfg, steps[i], 100), 0);
    }
    ps_config_fini(&cfg);
}

TEST(another_policy_stays_as_it_is)
{
    ps_config cfg, outer;
    const ps_job_start start = {.total_steps = 30, .step = 7, .rule_bytes = 5};
    load(&cfg, NULL, 0);
    ps_local_steps_outer(&outer, &cfg);
    assert_memory_equal(&outer, &cfg, sizeof cfg);
    const ps_job_start same = ps_job_start_of_exchange(&start, &cfg);
    assert_memory_equal(&same, &start, sizeof start);
    ps_config_fini(&cfg);
}

TEST(a_job_goes_on_in_its_round)
{
    const char *const sets[] = {"sync.policy=local", "sync.local_steps=4",
                                "sync.local_after=2"};
    ps_config cfg;
    load(&cfg, sets, 3);
    const ps_job_start start = {.total_steps = 11, .step = 7, .rule_bytes = 5};
    const ps_job_start outer = ps_job_start_of_exchange(&start, &cfg);
    assert_int_equal(outer.total_steps, 5); // steps 0 | 1 | 2 .. 5 | 6 .. 9 | 10
    assert_int_equal(outer.step, 3);
    assert_int_equal(outer.rule_bytes, 0);
    assert_int_equal(outer.ahead, 0);
    cfg.sync.fragments = 4; // one is sent after each of the steps 2 .. 5
    const ps_job_start streaming = {.total_steps = 11, .step = 4};
    assert_int_equal(ps_job_start_of_exchange(&streaming, &cfg).ahead, 2);
    ps_config_fini(&cfg);
}
