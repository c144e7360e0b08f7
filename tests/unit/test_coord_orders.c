/* Shards get an order once all of them have the push, all in one sequence, and again
 * after a lost connection. */
#include <poll.h>

#include "check.h"
#include "coord_orders.h"
#include "sync_codec.h"

enum { SHARDS = 2, WORKERS = 2, MOST = 64 };

typedef struct outbox {
    ps_coord_orders *orders;
    uint64_t got[SHARDS][MOST]; // the numbers of the orders, by shard
    int n[SHARDS];
    ps_sync_order last;
    ps_sync_entry entries[WORKERS];
    char key[64], figures[512], lines[512];
    bool over;
} outbox;

static ps_control_id shard_id(int shard)
{
    ps_control_id id = {0};
    id.bytes[0] = (uint8_t)(shard + 1);
    return id;
}

static void take(void *owner, const ps_control_id *to, const ps_control *c)
{
    outbox *o = owner;
    const int shard = to->bytes[0] - 1;
    assert_int_equal(c->kind, PS_CONTROL_ORDER);
    o->got[shard][o->n[shard]++] = c->order;
    assert_ok(ps_sync_order_read(c->value, c->bytes, o->entries, WORKERS, &o->last));
}

static ps_err keep(void *owner, const char *key, const void *value, size_t bytes)
{
    outbox *o = owner;
    ps_sync_rest rest;
    assert_ok(ps_sync_rest_read(value, bytes, &rest));
    strcpy(o->key, key);
    snprintf(o->figures, sizeof o->figures, "%.*s", (int)rest.figures.n,
             (const char *)rest.figures.at);
    snprintf(o->lines, sizeof o->lines, "%.*s", (int)rest.lines.n,
             (const char *)rest.lines.at);
    o->over = rest.over;
    return PS_OK;
}

static void begin_fragments(outbox *o, ps_sync_rules rules, uint32_t fragments)
{
    const uint64_t batches[WORKERS] = {4, 4};
    const ps_coord_orders_hooks hooks = {.owner = o, .send = take, .store = keep};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    *o = (outbox){0};
    ps_sync_rules_write(&w, &rules, fragments, batches);
    assert_int_equal(ps_coord_orders_create(&hooks, w.base, w.used / 2, &o->orders),
                     PS_ERR_PROTOCOL);
    assert_null(o->orders);
    assert_ok(ps_coord_orders_create(&hooks, w.base, w.used, &o->orders));
    ps_mp_writer_fini(&w);
}

#define RULES(...) ((ps_sync_rules){.n_workers = WORKERS, __VA_ARGS__})
/* more: of the rules. */
#define begin_backup(o, ...)                                                             \
    begin_fragments((o), RULES(.kind = PS_POLICY_BACKUP, __VA_ARGS__), 1)

static void begin(outbox *o, ps_policy_kind kind)
{
    begin_fragments(
        o, RULES(.kind = kind, .first = 3, .number = 3, .total = 5, .stretch = 1), 1);
}

static ps_err tell(outbox *o, int shard, uint64_t rank, uint64_t number, uint64_t next)
{
    const ps_control_id id = shard_id(shard);
    const ps_control c = {.kind = PS_CONTROL_PUSHED,
                          .pushed = {rank, number, SHARDS, next, 0, SHARDS}};
    return ps_coord_orders_pushed(o->orders, &id, &c);
}

/* Of a fragment; holders: how many shards have chunks of it. */
static ps_err tell_fragment(outbox *o, int shard, uint64_t rank, uint64_t number,
                            uint64_t fragment, uint64_t holders)
{
    const ps_control_id id = shard_id(shard);
    const ps_control c = {.kind = PS_CONTROL_PUSHED,
                          .pushed = {rank, number, SHARDS, 0, fragment, holders}};
    return ps_coord_orders_pushed(o->orders, &id, &c);
}

TEST(an_order_waits_for_all_shards)
{
    outbox o;
    begin(&o, PS_POLICY_ASP);
    assert_ok(tell(&o, 0, 0, 3, 0));
    assert_ok(tell(&o, 0, 0, 3, 0)); // a repetition does not count
    assert_int_equal(o.n[0] + o.n[1], 0);
    assert_ok(tell(&o, 1, 1, 3, 0)); // the shards' sequences may differ
    assert_ok(tell(&o, 1, 0, 3, 0));
    assert_ok(tell(&o, 0, 1, 3, 0));
    assert_true(o.n[0] == o.n[1] && o.n[0] > 0);
    assert_true(o.last.rest && !o.last.over);
    assert_string_equal(o.key, "policy/0");
    assert_non_null(strstr(o.figures, "\"counted\":2"));
    assert_string_equal(o.lines, "0-1 0-1");
    assert_false(o.over);
    ps_coord_orders_destroy(&o.orders);
}

/* One of two pushes is enough for a version. It waits for the other push, but only for a
 * limited time. */
TEST(a_grace_ends)
{
    outbox o;
    begin_backup(&o, .backups = 1, .grace_ms = 30, .first = 3, .number = 3, .total = 8,
                 .stretch = 4);
    assert_true(ps_coord_orders_deadline(o.orders).at_ns == UINT64_MAX);
    for (int shard = 0; shard < SHARDS; shard++)
        assert_ok(tell(&o, shard, 0, 3, 0));
    const ps_deadline grace = ps_coord_orders_deadline(o.orders);
    assert_ok(ps_coord_orders_expire(o.orders)); // too early, or just over
    if (!ps_deadline_passed(grace)) assert_int_equal(o.n[0], 0);
    poll(NULL, 0, ps_deadline_left_ms(grace) + 1);
    assert_ok(ps_coord_orders_expire(o.orders));
    assert_true(o.n[0] == 1 && o.last.applies && o.last.n == 1);
    assert_true(ps_coord_orders_deadline(o.orders).at_ns == UINT64_MAX);
    ps_coord_orders_destroy(&o.orders);
}

TEST(lost_orders_come_again)
{
    outbox o;
    begin(&o, PS_POLICY_ASP);
    for (uint64_t number = 3; number < 5; number++)
        for (int i = 0; i < SHARDS * WORKERS; i++)
            assert_ok(tell(&o, i % 2, (uint64_t)i / 2, number, 0));
    assert_true(o.last.over);
    const int n = o.n[0];
    assert_int_equal(n, 2);
    assert_ok(tell(&o, 1, 0, 4, 2)); // it has the first order
    assert_int_equal(o.n[0], n);
    assert_int_equal(o.n[1], n + 1);
    assert_int_equal(o.got[1][n], 2);
    assert_ok(tell(&o, 1, 0, 4, 1000));
    assert_int_equal(o.n[1], n + 1);
    ps_coord_orders_destroy(&o.orders);
}

TEST(bad_pushes_are_refused)
{
    outbox o;
    begin(&o, PS_POLICY_BACKUP);
    assert_int_equal(tell(&o, 0, WORKERS, 3, 0), PS_ERR_PROTOCOL);
    assert_int_equal(tell(&o, 0, 0, 5, 0), PS_ERR_PROTOCOL); // before push 3
    assert_ok(tell(&o, 1, 0, 3, 0));
    assert_int_equal(tell(&o, 2, 0, 3, 0), PS_ERR_PROTOCOL); // a third shard
    const ps_control_id id = shard_id(0);
    const ps_control c = {.kind = PS_CONTROL_PUSHED, .pushed = {0, 3, SHARDS + 1}};
    assert_int_equal(ps_coord_orders_pushed(o.orders, &id, &c), PS_ERR_PROTOCOL);
    assert_int_equal(tell_fragment(&o, 0, 0, 3, 1, SHARDS), PS_ERR_PROTOCOL);
    assert_int_equal(tell_fragment(&o, 0, 0, 3, 0, 0), PS_ERR_PROTOCOL);
    assert_int_equal(tell_fragment(&o, 0, 0, 3, 0, SHARDS + 1), PS_ERR_PROTOCOL);
    ps_coord_orders_destroy(&o.orders);
}

/* The first fragment is in shard 0 alone. Shard 1 hears of its orders with the first push
 * of the other one, and carries out all in one sequence. */
TEST(a_shard_without_a_fragment_misses_no_order)
{
    outbox o;
    begin_fragments(&o,
                    RULES(.kind = PS_POLICY_BACKUP, .add = true, .come_back = true,
                          .total = 2, .stretch = 1),
                    2);
    assert_ok(ps_coord_orders_set(o.orders, "job/place/0", "{}", 2));
    for (uint64_t rank = 0; rank < WORKERS; rank++)
        assert_ok(tell_fragment(&o, 0, rank, 0, 0, 1));
    assert_true(o.n[0] == 1 && o.n[1] == 0 && o.last.fragment == 0 && o.last.applies);
    assert_false(ps_coord_orders_may_lose(o.orders, 1)); // not all shards are known
    assert_ok(tell_fragment(&o, 1, 1, 0, 1, SHARDS));
    assert_true(o.n[1] == 1 && o.got[1][0] == 1);
    assert_true(ps_coord_orders_may_lose(o.orders, 1));
    // Worker 1 has pushed fragment 0; its place begins above both of its numbers.
    assert_ok(ps_coord_orders_lose(o.orders, 1));
    assert_int_equal(ps_coord_orders_reentry_of(o.orders, 1).push, 2);
    assert_ok(tell_fragment(&o, 0, 1, 0, 1, SHARDS)); // from its grave
    for (int shard = 0; shard < SHARDS; shard++)
        assert_ok(tell_fragment(&o, shard, 0, 0, 1, SHARDS));
    assert_int_equal(o.n[0], 2);
    assert_ok(tell_fragment(&o, 0, 1, 2, 0, 1)); // its empty ones
    for (int shard = 0; shard < SHARDS; shard++)
        assert_ok(tell_fragment(&o, shard, 1, 2, 1, SHARDS));
    assert_true(o.n[0] == 4 && o.n[1] == 4 && !o.last.applies);
    ps_coord_orders_destroy(&o.orders);
}

/* Workers learn that a stretch has all its versions while they are still in a round. */
TEST(a_stretch_closes)
{
    for (int cuts = 1; cuts >= 0; cuts--) {
        outbox o;
        begin_backup(&o, .backups = 1, .add = true, .cuts = cuts, .total = 2,
                     .stretch = 1);
        assert_int_equal(ps_coord_orders_closed(o.orders), 0);
        for (int shard = 0; shard < SHARDS; shard++)
            assert_ok(tell(&o, shard, 1, 0, 0));
        assert_false(o.last.rest);
        assert_int_equal(ps_coord_orders_closed(o.orders), cuts);
        for (int shard = 0; shard < SHARDS; shard++)
            assert_ok(tell(&o, shard, 0, 0, 0));
        assert_true(o.last.rest);
        assert_int_equal(ps_coord_orders_closed(o.orders), cuts);
        ps_coord_orders_destroy(&o.orders);
    }
    assert_int_equal(ps_coord_orders_closed(NULL), 0);
}

/* What the dead process has pushed is void, in every shard. */
TEST(a_worker_that_comes_back_begins_anew)
{
    outbox o;
    begin_backup(&o, .backups = 1, .add = true, .come_back = true, .total = 8,
                 .stretch = 4);
    assert_false(ps_coord_orders_may_lose(NULL, 1));
    for (int shard = 0; shard < SHARDS; shard++)
        assert_ok(tell(&o, shard, 0, 0, 0));
    assert_int_equal(o.n[0], 1);
    assert_ok(tell(&o, 0, 1, 0, 0)); // half of its push
    assert_false(ps_coord_orders_may_lose(o.orders, 1));
    assert_ok(ps_coord_orders_set(o.orders, "job/place/0", "{}", 2));
    assert_true(ps_coord_orders_may_lose(o.orders, 1));
    assert_ok(ps_coord_orders_lose(o.orders, 1));
    for (int shard = 0; shard < SHARDS; shard++)
        assert_int_equal(o.n[shard], 2);
    const ps_coord_orders_reentry place = ps_coord_orders_reentry_of(o.orders, 1);
    assert_int_equal(o.last.back, place.push);
    assert_int_equal(o.last.n, 1);
    assert_int_equal(o.entries[0].rank, 1);
    assert_ok(tell(&o, 1, 1, 0, 0)); // the other half, from its grave
    assert_int_equal(o.n[0], 2);
    for (int shard = 0; shard < SHARDS; shard++)
        assert_ok(tell(&o, shard, 1, place.push, 0));
    assert_int_equal(o.n[0], 3);
    assert_false(o.last.applies || o.last.back > 0);
    assert_true(o.entries[0].rank == 1 && o.entries[0].answered);
    ps_coord_orders_destroy(&o.orders);
}

/* At rest, until all that is agreed on there is over, nobody may be lost. */
TEST(nobody_is_lost_at_rest)
{
    outbox o;
    begin_backup(&o, .add = true, .come_back = true, .total = 2, .stretch = 1);
    assert_ok(ps_coord_orders_set(o.orders, "job/place/0", "{}", 2));
    assert_true(ps_coord_orders_may_lose(o.orders, 1));
    for (int i = 0; i < SHARDS * WORKERS; i++)
        assert_ok(tell(&o, i % SHARDS, (uint64_t)(i / SHARDS), 0, 0));
    assert_true(o.last.rest);
    assert_false(ps_coord_orders_may_lose(o.orders, 1));
    assert_ok(ps_coord_orders_set(o.orders, "job/place/1", "{}", 2));
    assert_true(ps_coord_orders_may_lose(o.orders, 1));
    ps_coord_orders_destroy(&o.orders);
}

/* The values that are stored, by the key's last number. */
typedef struct pieces {
    char *lines;
    size_t bytes, longest;
    uint32_t n, more;
    bool over; // the rest itself is stored: the last one
} pieces;

static void ignore(void *owner, const ps_control_id *to, const ps_control *c)
{
}

static ps_err keep_piece(void *owner, const char *key, const void *value, size_t bytes)
{
    pieces *p = owner;
    ps_sync_rest rest = {.lines = {value, bytes}};
    char wanted[32];
    assert_false(p->over);
    if (strcmp(key, "policy/0") == 0) {
        assert_ok(ps_sync_rest_read(value, bytes, &rest));
        p->more = rest.more;
        p->over = true;
    } else {
        snprintf(wanted, sizeof wanted, "policy/0/%u", ++p->n);
        assert_string_equal(key, wanted);
    }
    // What waits for the first one comes behind it.
    p->lines = realloc(p->lines, p->bytes + rest.lines.n + 1);
    assert_non_null(p->lines);
    const size_t at = p->over ? 0 : p->bytes;
    memmove(p->lines + at + rest.lines.n, p->lines + at, p->bytes - at);
    memcpy(p->lines + at, rest.lines.at, rest.lines.n);
    p->bytes += rest.lines.n;
    p->lines[p->bytes] = '\0';
    if (rest.lines.n > p->longest) p->longest = rest.lines.n;
    return PS_OK;
}

/* A stretch may have any number of pushes, and a value has a bound. */
TEST(a_long_record_is_stored_in_pieces)
{
    enum { STEPS = 70000, PUSHES = STEPS * WORKERS };
    const uint64_t batches[WORKERS] = {4, 4};
    const ps_sync_rules rules = {
        .kind = PS_POLICY_ASP, .n_workers = WORKERS, .total = STEPS, .stretch = STEPS};
    pieces p = {0};
    const ps_coord_orders_hooks hooks = {
        .owner = &p, .send = ignore, .store = keep_piece};
    ps_coord_orders *orders;
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_sync_rules_write(&w, &rules, 1, batches);
    assert_ok(ps_coord_orders_create(&hooks, w.base, w.used, &orders));
    ps_mp_writer_fini(&w);
    const ps_control_id shard = shard_id(0);
    for (uint64_t i = 0; i < PUSHES; i++) {
        const ps_control c = {.kind = PS_CONTROL_PUSHED,
                              .pushed = {i % WORKERS, i / WORKERS, 1, 0, 0, 1}};
        assert_ok(ps_coord_orders_pushed(orders, &shard, &c));
    }
    assert_true(p.over && p.n > 0 && p.more == p.n);
    assert_true(p.longest <= 256 << 10);
    uint64_t applied = 0; // ranks before each line's space
    for (const char *line = p.lines; *line;
         line += strcspn(line, "\n") + (*line != '\0')) {
        for (const char *c = line; *c != ' '; c++)
            if (*c == '0' || *c == '1') applied++;
        if (!strchr(line, '\n')) break;
    }
    assert_int_equal(applied, PUSHES);
    free(p.lines);
    ps_coord_orders_destroy(&orders);
}
