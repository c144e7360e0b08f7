#include "coord_orders.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_keys.h"
#include "mem.h"

/* Of a rules value: numbers before the batches. Flags of an ORDER and of its entries. */
enum { RULES = 16, HEAD_BYTES = 8, ENTRY_BYTES = 16 };
enum { APPLIES = 1, RESTS = 2, OVER = 4, BACK = 8, APPLIED = 1, ANSWERED = 2 };

typedef struct kept_order {
    uint64_t numbers[4];
    void *value; // owned
    size_t bytes;
} kept_order;

/* A push that has not reached all shards, or the next one. */
typedef struct arriving {
    uint64_t number;
    uint32_t n_in;
} arriving;

struct ps_coord_orders {
    ps_coord_orders_hooks hooks;
    ps_sync sync;
    char *script; // owned
    uint32_t n_shards, n_askers;
    ps_control_id *askers; // (n_shards) those that have sent something
    uint64_t *told;        // (n_shards, n_workers) number of the next push to be told
    arriving *pushes;      // (n_workers)
    /* The last orders, for shards whose connection was lost: at index seq % n_kept. A
     * shard that is silent holds up all workers, so few orders follow. */
    kept_order *kept;
    uint64_t n_kept, n_orders;
    char *record; // since the last rest; owned
    size_t record_bytes, record_room;
    uint64_t n_rests;
    bool placed; // since the last one it is known where a worker that comes back begins
    ps_deadline grace; // of the version that could be made; at_ns UINT64_MAX: none
};

ps_err ps_coord_orders_rules(const ps_sync_rules *r, const uint64_t *batches,
                             void **value, size_t *bytes)
{
    uint64_t numbers[RULES] = {(uint64_t)r->kind, r->n_workers,
                               r->backups,        r->add,
                               r->staleness,      (uint64_t)r->correction,
                               r->first,          r->version,
                               r->total,          r->stretch,
                               r->pause,          r->stop,
                               r->grace_ms,       r->come_back,
                               r->number};
    memcpy(&numbers[RULES - 1], &r->delay_strength, sizeof r->delay_strength);
    const size_t script = r->script ? strlen(r->script) + 1 : 0;
    const size_t batch_bytes = r->n_workers * sizeof *batches;
    *bytes = sizeof numbers + batch_bytes + script;
    PS_TRY(ps_mem_zalloc(value, *bytes, 1, "the policy"));
    memcpy(*value, numbers, sizeof numbers);
    memcpy((char *)*value + sizeof numbers, batches, batch_bytes);
    if (script) memcpy((char *)*value + sizeof numbers + batch_bytes, r->script, script);
    return PS_OK;
}

static ps_err bad_rules(void)
{
    return ps_err_set(PS_ERR_PROTOCOL, "%s is not a policy", PS_COORD_ORDERS_RULES);
}

static ps_err read_rules(ps_coord_orders *o, const void *value, size_t bytes)
{
    uint64_t n[RULES], batches[PS_MAX_RANKS];
    if (bytes < sizeof n) return bad_rules();
    memcpy(n, value, sizeof n);
    const size_t head = sizeof n + (size_t)n[1] * sizeof *batches;
    if (n[1] == 0 || n[1] > PS_MAX_RANKS || bytes < head || n[2] >= n[1])
        return bad_rules();
    memcpy(batches, (const char *)value + sizeof n, head - sizeof n);
    if (bytes > head) {
        PS_TRY(ps_mem_zalloc(&o->script, bytes - head + 1, 1, "the record"));
        memcpy(o->script, (const char *)value + head, bytes - head);
    }
    ps_sync_rules rules = {.kind = (ps_policy_kind)n[0],
                           .n_workers = (uint32_t)n[1],
                           .backups = (uint32_t)n[2],
                           .add = n[3] != 0,
                           .staleness = n[4],
                           .correction = (ps_correction)n[5],
                           .first = n[6],
                           .version = n[7],
                           .total = n[8],
                           .stretch = n[9],
                           .pause = n[10],
                           .stop = n[11],
                           .grace_ms = n[12],
                           .come_back = n[13] != 0,
                           .number = n[14],
                           .script = o->script};
    memcpy(&rules.delay_strength, &n[RULES - 1], sizeof rules.delay_strength);
    return ps_sync_init(&o->sync, &rules, batches);
}

static ps_err create(ps_coord_orders *o, const void *value, size_t bytes)
{
    o->grace.at_ns = UINT64_MAX;
    PS_TRY(read_rules(o, value, bytes));
    const size_t n = o->sync.rules.n_workers;
    PS_TRY(ps_mem_zalloc(&o->pushes, n, sizeof *o->pushes, "the policy"));
    for (size_t r = 0; r < n; r++)
        o->pushes[r].number = o->sync.rules.number;
    o->n_kept = 4 * n + 16;
    return ps_mem_zalloc(&o->kept, o->n_kept, sizeof *o->kept, "the policy");
}

ps_err ps_coord_orders_create(const ps_coord_orders_hooks *hooks, const void *value,
                              size_t bytes, ps_coord_orders **out)
{
    PS_TRY(ps_mem_zalloc(out, 1, sizeof **out, "the policy"));
    (*out)->hooks = *hooks;
    ps_err err = create(*out, value, bytes);
    if (err != PS_OK) ps_coord_orders_destroy(out);
    return err;
}

void ps_coord_orders_destroy(ps_coord_orders **orders)
{
    ps_coord_orders *o = *orders;
    if (!o) return;
    for (uint64_t i = 0; o->kept && i < o->n_kept; i++)
        free(o->kept[i].value);
    ps_sync_fini(&o->sync);
    free(o->kept);
    free(o->script);
    free(o->askers);
    free(o->told);
    free(o->pushes);
    free(o->record);
    free(o);
    *orders = NULL;
}

/* --- orders ---------------------------------------------------------------------------
 */

static ps_control message_of(const kept_order *k)
{
    ps_control c = {.kind = PS_CONTROL_ORDER, .value = k->value, .bytes = k->bytes};
    memcpy(c.number, k->numbers, sizeof k->numbers);
    return c;
}

static ps_err keep_order(ps_coord_orders *o, const ps_sync_order *order, kept_order **out)
{
    kept_order *k = &o->kept[++o->n_orders % o->n_kept];
    free(k->value);
    k->bytes = HEAD_BYTES + (size_t)order->n * ENTRY_BYTES;
    PS_TRY(ps_mem_zalloc(&k->value, k->bytes, 1, "an order"));
    k->numbers[0] = o->n_orders;
    k->numbers[1] = order->version;
    k->numbers[2] = order->back > 0 ? order->back : order->step;
    k->numbers[3] = (order->back > 0 ? BACK : 0u) | (order->applies ? APPLIES : 0u) |
                    (order->rest ? RESTS : 0u) | (order->over ? OVER : 0u);
    memcpy(k->value, &order->share, HEAD_BYTES);
    for (uint32_t i = 0; i < order->n; i++) {
        const ps_sync_entry *e = &order->entries[i];
        const uint32_t flags =
            (e->applied ? APPLIED : 0u) | (e->answered ? ANSWERED : 0u);
        char *at = (char *)k->value + HEAD_BYTES + (size_t)i * ENTRY_BYTES;
        memcpy(at, &e->rank, 4);
        memcpy(at + 4, &flags, 4);
        memcpy(at + 8, &e->factor, 4);
        memcpy(at + 12, &e->compensation, 4);
    }
    *out = k;
    return PS_OK;
}

ps_err ps_coord_orders_read(const ps_control *c, ps_sync_entry *entries, uint32_t room,
                            ps_sync_order *out)
{
    const size_t n = c->bytes / ENTRY_BYTES;
    double share = 0;
    if (c->bytes % ENTRY_BYTES != HEAD_BYTES || n > room)
        return ps_err_set(PS_ERR_PROTOCOL, "an order of %zu bytes", c->bytes);
    memcpy(&share, c->value, HEAD_BYTES);
    if (!(share >= 0 && share <= 1))
        return ps_err_set(PS_ERR_PROTOCOL, "an order for %g of a step", share);
    for (size_t i = 0; i < n; i++) {
        const char *at = (const char *)c->value + HEAD_BYTES + i * ENTRY_BYTES;
        uint32_t flags;
        memcpy(&entries[i].rank, at, 4);
        memcpy(&flags, at + 4, 4);
        memcpy(&entries[i].factor, at + 8, 4);
        memcpy(&entries[i].compensation, at + 12, 4);
        entries[i].applied = (flags & APPLIED) != 0;
        entries[i].answered = (flags & ANSWERED) != 0;
        if (entries[i].rank >= room || (i > 0 && entries[i].rank <= entries[i - 1].rank))
            return ps_err_set(PS_ERR_PROTOCOL, "an order for worker %u", entries[i].rank);
    }
    *out = (ps_sync_order){.version = c->number[1],
                           .step = c->number[2],
                           .share = share,
                           .applies = (c->number[3] & APPLIES) != 0,
                           .rest = (c->number[3] & RESTS) != 0,
                           .over = (c->number[3] & OVER) != 0,
                           .back = (c->number[3] & BACK) ? c->number[2] : 0,
                           .n = (uint32_t)n,
                           .entries = entries};
    return PS_OK;
}

/* --- the record -----------------------------------------------------------------------
 */

static ps_err append(ps_coord_orders *o, const char *text, size_t bytes)
{
    if (o->record_bytes + bytes > o->record_room) {
        const size_t room = 2 * o->record_room + bytes + 4096;
        char *larger = realloc(o->record, room);
        if (!larger) return ps_err_set(PS_ERR_NOMEM, "no memory for the record");
        o->record = larger;
        o->record_room = room;
    }
    memcpy(o->record + o->record_bytes, text, bytes);
    o->record_bytes += bytes;
    return PS_OK;
}

static ps_err note_order(ps_coord_orders *o, const ps_sync_order *order)
{
    char line[16 * PS_MAX_RANKS];
    size_t bytes;
    ps_sync_line(order, line, sizeof line, &bytes);
    return append(o, line, bytes);
}

static ps_err numbers_json(char *out, size_t n, size_t *at, const char *name,
                           const ps_sync *s, uint64_t (*value)(const ps_sync *, uint32_t),
                           uint32_t count)
{
    *at += (size_t)snprintf(out + *at, n - *at, ",\"%s\":[", name);
    for (uint32_t i = 0; i < count && *at < n; i++)
        *at += (size_t)snprintf(out + *at, n - *at, i ? ",%" PRIu64 : "%" PRIu64,
                                value(s, i));
    if (*at < n) *at += (size_t)snprintf(out + *at, n - *at, "]");
    return *at < n ? PS_OK : ps_err_set(PS_ERR_INTERNAL, "the policy's figures");
}

static uint64_t counted_of(const ps_sync *s, uint32_t rank)
{
    return s->workers[rank].counted;
}

static uint64_t dropped_of(const ps_sync *s, uint32_t rank)
{
    return s->workers[rank].dropped;
}

static uint64_t bin_of(const ps_sync *s, uint32_t i)
{
    return s->histogram[i];
}

static ps_err figures(const ps_sync *s, char *out, size_t n, size_t *bytes)
{
    uint64_t counted = 0, dropped = 0;
    uint32_t bins = PS_SYNC_BINS;
    while (bins > 1 && s->histogram[bins - 1] == 0)
        bins--;
    for (uint32_t r = 0; r < s->rules.n_workers; r++) {
        counted += s->workers[r].counted;
        dropped += s->workers[r].dropped;
    }
    size_t at = (size_t)snprintf(out, n,
                                 "{\"policy\":\"%s\",\"versions\":%" PRIu64
                                 ",\"counted\":%" PRIu64 ",\"dropped\":%" PRIu64,
                                 ps_word_name(ps_policy_words, (int)s->rules.kind),
                                 s->version - s->rules.version, counted, dropped);
    const uint32_t w = s->rules.n_workers;
    PS_TRY(numbers_json(out, n, &at, "counted_by_worker", s, counted_of, w));
    PS_TRY(numbers_json(out, n, &at, "dropped_by_worker", s, dropped_of, w));
    PS_TRY(numbers_json(out, n, &at, "staleness", s, bin_of, bins));
    at += (size_t)snprintf(out + at, n - at, "}\n%" PRIu64 " %" PRIu64 "\n", s->done,
                           s->version);
    *bytes = at;
    return at < n ? PS_OK : ps_err_set(PS_ERR_INTERNAL, "the policy's figures");
}

static ps_err publish(ps_coord_orders *o)
{
    char text[256 + 48 * PS_MAX_RANKS], key[48];
    size_t bytes;
    void *value;
    PS_TRY(figures(&o->sync, text, sizeof text, &bytes));
    PS_TRY(ps_mem_zalloc(&value, bytes + o->record_bytes, 1, "the record"));
    memcpy(value, text, bytes);
    memcpy((char *)value + bytes, o->record, o->record_bytes);
    snprintf(key, sizeof key, "policy/%" PRIu64, o->n_rests++);
    o->placed = false;
    ps_err err = o->hooks.store(o->hooks.owner, key, value, bytes + o->record_bytes);
    free(value);
    o->record_bytes = 0;
    return err;
}

/* The grace begins once, and ends with the order that it waited for. */
static void set_grace(ps_coord_orders *o)
{
    if (!ps_sync_graces(&o->sync))
        o->grace.at_ns = UINT64_MAX;
    else if (o->grace.at_ns == UINT64_MAX)
        o->grace = ps_deadline_in_ms(o->sync.rules.grace_ms);
}

static ps_err give(ps_coord_orders *o, const ps_sync_order *order)
{
    kept_order *kept;
    PS_TRY(keep_order(o, order, &kept));
    PS_TRY(note_order(o, order));
    if (order->rest) PS_TRY(publish(o));
    const ps_control c = message_of(kept);
    for (uint32_t i = 0; i < o->n_askers; i++)
        o->hooks.send(o->hooks.owner, &o->askers[i], &c);
    return PS_OK;
}

static ps_err decide(ps_coord_orders *o)
{
    for (;;) {
        ps_sync_order order;
        bool any;
        PS_TRY(ps_sync_decide(&o->sync, &order, &any));
        set_grace(o);
        if (!any) return PS_OK;
        PS_TRY(give(o, &order));
    }
}

static ps_err set_batches(ps_coord_orders *o, const void *value, size_t bytes)
{
    uint64_t batches[PS_MAX_RANKS];
    if (bytes != o->sync.rules.n_workers * sizeof *batches)
        return ps_err_set(PS_ERR_PROTOCOL, "%s has %zu bytes", PS_COORD_ORDERS_BATCHES,
                          bytes);
    memcpy(batches, value, bytes);
    return ps_sync_set_batches(&o->sync, batches);
}

ps_err ps_coord_orders_set(ps_coord_orders *o, const char *key, const void *value,
                           size_t bytes)
{
    if (strcmp(key, PS_COORD_ORDERS_BATCHES) == 0) return set_batches(o, value, bytes);
    if (strcmp(key, ps_job_key_place(o->n_rests).text) == 0) o->placed = true;
    if (strcmp(key, PS_COORD_ORDERS_END) != 0) return PS_OK;
    ps_sync_end(&o->sync);
    return decide(o);
}

ps_deadline ps_coord_orders_deadline(const ps_coord_orders *o)
{
    return o->grace;
}

ps_err ps_coord_orders_expire(ps_coord_orders *o)
{
    if (!ps_deadline_passed(o->grace)) return PS_OK;
    ps_sync_grace_over(&o->sync);
    return decide(o);
}

/* --- pushes ---------------------------------------------------------------------------
 */

static ps_err begin(ps_coord_orders *o, uint64_t n_shards)
{
    if (n_shards == 0 || n_shards > UINT16_MAX)
        return ps_err_set(PS_ERR_PROTOCOL, "a push of %" PRIu64 " shards", n_shards);
    const size_t n = (size_t)n_shards;
    PS_TRY(ps_mem_zalloc(&o->askers, n, sizeof *o->askers, "the policy"));
    PS_TRY(ps_mem_zalloc(&o->told, n * o->sync.rules.n_workers, sizeof *o->told,
                         "the policy"));
    for (size_t i = 0; i < n * o->sync.rules.n_workers; i++)
        o->told[i] = o->sync.rules.number;
    o->n_shards = (uint32_t)n_shards;
    return PS_OK;
}

static ps_err find_asker(ps_coord_orders *o, const ps_control_id *from, uint32_t *index)
{
    for (uint32_t i = 0; i < o->n_askers; i++)
        if (memcmp(&o->askers[i], from, sizeof *from) == 0) {
            *index = i;
            return PS_OK;
        }
    if (o->n_askers == o->n_shards)
        return ps_err_set(PS_ERR_PROTOCOL, "a push of one shard too many");
    *index = o->n_askers;
    o->askers[o->n_askers++] = *from;
    return PS_OK;
}

/* Sends again the orders from number `next` on. */
static ps_err repeat_orders(ps_coord_orders *o, const ps_control_id *to, uint64_t next)
{
    if (o->n_orders >= next + o->n_kept)
        return ps_err_set(PS_ERR_PROTOCOL, "order %" PRIu64 " is long over", next);
    for (uint64_t i = next; i <= o->n_orders; i++) {
        const ps_control c = message_of(&o->kept[i % o->n_kept]);
        o->hooks.send(o->hooks.owner, to, &c);
    }
    return PS_OK;
}

static ps_err count_in(ps_coord_orders *o, uint32_t asker, const ps_control *c)
{
    const uint32_t workers = o->sync.rules.n_workers;
    const uint64_t rank = c->number[0], number = c->number[1];
    if (rank >= workers)
        return ps_err_set(PS_ERR_PROTOCOL, "a push of worker %" PRIu64, rank);
    uint64_t *told = &o->told[asker * (size_t)workers + rank];
    arriving *push = &o->pushes[rank];
    if (number < *told) return PS_OK; // a repetition
    if (number != *told || number != push->number)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "push %" PRIu64 " of worker %" PRIu64 " out of turn", number,
                          rank);
    ++*told;
    if (++push->n_in < o->n_shards) return PS_OK;
    push->number++;
    push->n_in = 0;
    PS_TRY(ps_sync_push(&o->sync, (uint32_t)rank));
    return decide(o);
}

ps_err ps_coord_orders_pushed(ps_coord_orders *o, const ps_control_id *from,
                              const ps_control *c)
{
    uint32_t asker = 0;
    if (!o->askers) PS_TRY(begin(o, c->number[2]));
    if (c->number[2] != o->n_shards)
        return ps_err_set(PS_ERR_PROTOCOL, "a push of %" PRIu64 " shards, not %u",
                          c->number[2], o->n_shards);
    PS_TRY(find_asker(o, from, &asker));
    if (c->number[3] > 0) PS_TRY(repeat_orders(o, from, c->number[3]));
    return count_in(o, asker, c);
}

/* --- a worker that comes back ---------------------------------------------------------
 */

bool ps_coord_orders_may_lose(const ps_coord_orders *o, int rank)
{
    return o && o->placed && o->n_askers == o->n_shards &&
           ps_sync_may_lose(&o->sync, (uint32_t)rank);
}

bool ps_coord_orders_end(const ps_coord_orders *o)
{
    return o && o->sync.ends;
}

/* Nothing that the dead process has sent counts from here on: its pushes have lower
 * numbers. */
ps_err ps_coord_orders_lose(ps_coord_orders *o, int rank)
{
    arriving *push = &o->pushes[rank];
    ps_sync_entry entry = {.rank = (uint32_t)rank};
    *push = (arriving){.number = push->number + 1};
    for (uint32_t i = 0; i < o->n_shards; i++)
        o->told[i * (size_t)o->sync.rules.n_workers + (size_t)rank] = push->number;
    ps_sync_lose(&o->sync, (uint32_t)rank);
    const ps_sync_order back = {
        .version = o->sync.version, .back = push->number, .n = 1, .entries = &entry};
    PS_TRY(give(o, &back));
    return decide(o);
}

ps_coord_orders_place ps_coord_orders_place_of(const ps_coord_orders *o, int rank)
{
    return (ps_coord_orders_place){.push = o->pushes[rank].number,
                                   .stretch = o->n_rests,
                                   .made = o->sync.workers[rank].clock};
}
