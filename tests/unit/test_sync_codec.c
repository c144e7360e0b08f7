/* Rules and orders arrive as they were sent; those that cannot be are refused. */
#include <math.h>

#include "check.h"
#include "sync_codec.h"

enum { WORKERS = 3 };

TEST(rules_arrive)
{
    const uint64_t batches[WORKERS] = {4, 8, 16};
    // Each number is another one, so that none can be taken for another.
    const ps_sync_rules sent = {.kind = PS_POLICY_SSP,
                                .n_workers = WORKERS,
                                .backups = 2,
                                .come_back = true,
                                .grace_ms = 21,
                                .staleness = 22,
                                .correction = PS_CORRECTION_DELAY,
                                .delay_strength = 0.1,
                                .first = 23,
                                .number = 24,
                                .version = 25,
                                .total = 26,
                                .stretch = 27,
                                .pause = 28,
                                .stop = 29,
                                .script = "0 0\n1 1\n"};
    ps_sync_rules got;
    uint64_t got_batches[PS_MAX_RANKS];
    uint32_t fragments;
    ps_map_bytes script;
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_sync_rules_write(&w, &sent, 5, batches);
    assert_ok(ps_sync_rules_read(w.base, w.used, &got, &fragments, got_batches, &script));
    assert_true(got.kind == sent.kind && got.n_workers == WORKERS && got.backups == 2);
    assert_true(!got.add && got.come_back && !got.cuts && got.grace_ms == 21);
    assert_true(got.staleness == 22 && got.correction == sent.correction);
    assert_true(got.delay_strength == 0.1 && got.first == 23 && got.number == 24);
    assert_true(got.version == 25 && got.total == 26 && got.stretch == 27);
    assert_true(got.pause == 28 && got.stop == 29 && fragments == 5 && !got.script);
    assert_memory_equal(got_batches, batches, sizeof batches);
    assert_int_equal(script.n, 8);
    assert_memory_equal(script.at, sent.script, script.n);
    for (size_t n = 0; n < w.used; n++)
        assert_int_equal(
            ps_sync_rules_read(w.base, n, &got, &fragments, got_batches, &script),
            PS_ERR_PROTOCOL);
    ps_mp_writer_fini(&w);
}

TEST(bad_rules_are_refused)
{
    const uint64_t batches[WORKERS] = {4, 4, 4};
    const ps_sync_rules good = {.kind = PS_POLICY_ASP, .n_workers = WORKERS};
    for (int i = 0; i < 5; i++) {
        ps_sync_rules rules = good, got;
        uint64_t got_batches[PS_MAX_RANKS];
        uint32_t fragments = i == 1 ? 0 : i == 2 ? PS_MAX_FRAGMENTS + 1 : 1;
        ps_map_bytes script;
        ps_mp_writer w;
        if (i == 3) rules.kind = (ps_policy_kind)(PS_POLICY_ASP + 1);
        if (i == 4) rules.delay_strength = NAN;
        ps_mp_writer_init(&w);
        ps_sync_rules_write(&w, &rules, fragments, batches);
        assert_int_equal(
            ps_sync_rules_read(w.base, w.used, &got, &fragments, got_batches, &script),
            i == 0 ? PS_OK : PS_ERR_PROTOCOL);
        ps_mp_writer_fini(&w);
    }
}

TEST(batches_are_of_all_workers)
{
    uint64_t batches[WORKERS] = {4, 8, 16}, got[WORKERS] = {0};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_sync_batches_write(&w, batches, WORKERS);
    assert_ok(ps_sync_batches_read(w.base, w.used, got, WORKERS));
    assert_memory_equal(got, batches, sizeof got);
    assert_int_equal(ps_sync_batches_read(w.base, w.used, got, WORKERS - 1),
                     PS_ERR_PROTOCOL);
    ps_mp_writer_fini(&w);
    ps_mp_writer_init(&w);
    ps_sync_batches_write(&w, batches, WORKERS - 1);
    assert_int_equal(ps_sync_batches_read(w.base, w.used, got, WORKERS), PS_ERR_PROTOCOL);
    ps_mp_writer_fini(&w);
}

static ps_err send_order(const ps_sync_order *order, ps_sync_entry *entries,
                         ps_sync_order *got)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_sync_order_write(&w, order);
    const ps_err err = ps_sync_order_read(w.base, w.used, entries, WORKERS, got);
    ps_mp_writer_fini(&w);
    return err;
}

TEST(orders_arrive)
{
    ps_sync_entry sent[] = {{.rank = 0, .applied = true, .factor = 0.1f},
                            {.rank = 2, .answered = true, .compensation = 0.3f}};
    ps_sync_entry entries[WORKERS];
    const ps_sync_order order = {.fragment = 6,
                                 .version = 31,
                                 .step = 32,
                                 .applies = true,
                                 .share = 0.7,
                                 .over = true,
                                 .back = 33,
                                 .n = 2,
                                 .entries = sent};
    ps_sync_order got;
    assert_ok(send_order(&order, entries, &got));
    assert_true(got.fragment == 6 && got.version == 31 && got.step == 32);
    assert_true(got.applies && got.share == 0.7 && !got.rest && got.over);
    assert_true(got.back == 33 && got.n == 2 && got.entries == entries);
    assert_true(entries[0].applied && !entries[0].answered && entries[0].factor == 0.1f);
    assert_true(entries[1].rank == 2 && !entries[1].applied && entries[1].answered);
    assert_true(entries[1].compensation == 0.3f && entries[0].compensation == 0);
}

TEST(bad_orders_are_refused)
{
    ps_sync_entry sent[WORKERS + 1] = {0}, entries[WORKERS];
    ps_sync_order order = {.entries = sent}, got;
    const struct {
        uint32_t n, first, second;
    } cases[] = {{1, WORKERS, 0}, {2, 1, 1}, {2, 1, 0}, {WORKERS + 1, 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        order.n = cases[i].n;
        sent[0].rank = cases[i].first;
        sent[1].rank = cases[i].second;
        assert_int_equal(send_order(&order, entries, &got), PS_ERR_PROTOCOL);
    }
    order.n = 0;
    assert_ok(send_order(&order, entries, &got));
    const double shares[] = {-0.5, 1.5, NAN};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        order.share = shares[i];
        assert_int_equal(send_order(&order, entries, &got), PS_ERR_PROTOCOL);
    }
    order.share = 1;
    order.fragment = PS_MAX_FRAGMENTS;
    assert_int_equal(send_order(&order, entries, &got), PS_ERR_PROTOCOL);
}
