#include "coord_orders.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "fault_point.h"
#include "job_keys.h"
#include "mem.h"
#include "sync_codec.h"

/* Of a record: what is longer is stored in several values. */
enum { PIECE_BYTES = 256 << 10 };

typedef struct kept_order {
    uint64_t number;
    ps_mp_writer value;
} kept_order;

/* A push of a fragment that has not reached all its shards, or the next one. */
typedef struct arriving {
    uint64_t number;
    uint32_t n_in;
} arriving;

struct ps_coord_orders {
    ps_coord_orders_hooks hooks;
    ps_sync_fragments sync;
    char *script; // owned
    uint32_t n_shards, n_askers;
    ps_control_id *askers; // (n_shards) those that have sent something
    uint64_t *told;   // (n_shards, fragments, workers) number of the next push to be told
    arriving *pushes; // (fragments, workers)
    /* The last orders, for shards whose connection was lost: at index seq % n_kept. A
     * shard that is silent holds up all workers, so few orders follow. */
    kept_order *kept;
    uint64_t n_kept, n_orders;
    char *record; // since the last rest; owned
    size_t record_bytes, record_room;
    uint64_t n_rests;
    bool placed; // since the last one it is known where a worker that comes back begins
    // (fragments) of the version that could be made; at_ns UINT64_MAX: none
    ps_deadline grace[PS_MAX_FRAGMENTS];
};

static const ps_sync_rules *orders_rules_of(const ps_coord_orders *o)
{
    return &ps_sync_fragments_last(&o->sync)->rules;
}

/* Pushes that may arrive at the same time: one of each worker and fragment. */
static size_t n_pushes(const ps_coord_orders *o)
{
    return (size_t)o->sync.n * orders_rules_of(o)->n_workers;
}

static size_t push_of(const ps_coord_orders *o, uint32_t fragment, uint32_t rank)
{
    return (size_t)fragment * orders_rules_of(o)->n_workers + rank;
}

static ps_err read_rules(ps_coord_orders *o, const void *value, size_t bytes)
{
    ps_sync_rules rules;
    uint32_t n_fragments;
    uint64_t batches[PS_MAX_RANKS];
    ps_map_bytes script;
    PS_TRY(ps_sync_rules_read(value, bytes, &rules, &n_fragments, batches, &script));
    if (script.n > 0) {
        PS_TRY(ps_mem_zalloc(&o->script, script.n + 1, 1, "the record"));
        memcpy(o->script, script.at, script.n);
    }
    rules.script = o->script;
    return ps_sync_fragments_init(&o->sync, n_fragments, &rules, batches);
}

static ps_err orders_create(ps_coord_orders *o, const void *value, size_t bytes)
{
    for (int i = 0; i < PS_MAX_FRAGMENTS; i++)
        o->grace[i].at_ns = UINT64_MAX;
    PS_TRY(read_rules(o, value, bytes));
    const size_t n = n_pushes(o);
    PS_TRY(PS_NEW(&o->pushes, n, "the policy"));
    for (size_t i = 0; i < n; i++)
        o->pushes[i].number = orders_rules_of(o)->number;
    o->n_kept = 4 * n + 16;
    return PS_NEW(&o->kept, o->n_kept, "the policy");
}

ps_err ps_coord_orders_create(const ps_coord_orders_hooks *hooks, const void *value,
                              size_t bytes, ps_coord_orders **out)
{
    PS_TRY(PS_NEW(out, 1, "the policy"));
    (*out)->hooks = *hooks;
    ps_err err = orders_create(*out, value, bytes);
    if (err != PS_OK) ps_coord_orders_destroy(out);
    return err;
}

void ps_coord_orders_destroy(ps_coord_orders **orders)
{
    ps_coord_orders *o = *orders;
    if (!o) return;
    for (uint64_t i = 0; o->kept && i < o->n_kept; i++)
        ps_mp_writer_fini(&o->kept[i].value);
    ps_sync_fragments_fini(&o->sync);
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
    return (ps_control){.kind = PS_CONTROL_ORDER,
                        .order = k->number,
                        .value = k->value.base,
                        .bytes = k->value.used};
}

static ps_err keep_order(ps_coord_orders *o, const ps_sync_order *order, kept_order **out)
{
    kept_order *k = &o->kept[++o->n_orders % o->n_kept];
    ps_mp_writer_fini(&k->value);
    ps_mp_writer_init(&k->value);
    k->number = o->n_orders;
    *out = k;
    ps_sync_order_write(&k->value, order);
    return ps_mp_writer_end(&k->value);
}

/* --- the record -----------------------------------------------------------------------
 */

static ps_err orders_append(ps_coord_orders *o, const char *text, size_t bytes)
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

/* The word of a rest is worker 0's to write: it knows whether the job ends there. */
static ps_err note_order(ps_coord_orders *o, const ps_sync_order *order)
{
    char line[16 * PS_MAX_RANKS];
    size_t bytes;
    ps_sync_order plain = *order;
    plain.rest = false;
    ps_sync_fragments_line(&o->sync, &plain, line, sizeof line, &bytes);
    return orders_append(o, line, order->rest && bytes > 0 ? bytes - 1 : bytes);
}

static json_t *numbers_json(const uint64_t *values, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer((json_int_t)values[i]));
    return list;
}

typedef struct tally {
    uint64_t all_counted, all_dropped;
    uint64_t counted[PS_MAX_RANKS], dropped[PS_MAX_RANKS]; // by rank
    uint64_t histogram[PS_SYNC_BINS];
    uint32_t bins; // up to the last one that is not 0
} tally;

/* Over all fragments. */
static tally count_pushes(const ps_sync_fragments *f)
{
    tally t = {.bins = 1};
    for (uint32_t i = 0; i < f->n; i++) {
        const ps_sync *s = &f->parts[i];
        for (uint32_t r = 0; r < s->rules.n_workers; r++) {
            t.counted[r] += s->workers[r].counted;
            t.dropped[r] += s->workers[r].dropped;
            t.all_counted += s->workers[r].counted;
            t.all_dropped += s->workers[r].dropped;
        }
        for (uint32_t b = 0; b < PS_SYNC_BINS; b++) {
            t.histogram[b] += s->histogram[b];
            if (s->histogram[b] > 0 && b >= t.bins) t.bins = b + 1;
        }
    }
    return t;
}

/* *text is owned by the caller (free()). */
static ps_err orders_figures(const ps_sync_fragments *f, char **text)
{
    const ps_sync *s = ps_sync_fragments_last(f);
    const tally t = count_pushes(f);
    // Several fragments count from the largest one's version on.
    const uint64_t versions =
        f->n > 1 ? s->done - s->rules.first : s->version - s->rules.version;
    const uint32_t w = s->rules.n_workers;
    json_t *json = json_pack(
        "{s:I, s:I, s:I, s:o, s:o, s:o}", "versions", (json_int_t)versions, "counted",
        (json_int_t)t.all_counted, "dropped", (json_int_t)t.all_dropped,
        "counted_by_worker", numbers_json(t.counted, w), "dropped_by_worker",
        numbers_json(t.dropped, w), "staleness", numbers_json(t.histogram, t.bins));
    *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return *text ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for the policy's figures");
}

static size_t record_piece(const ps_coord_orders *o, size_t at)
{
    const size_t left = o->record_bytes - at;
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

static uint32_t record_pieces(const ps_coord_orders *o)
{
    return (uint32_t)((o->record_bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}

static ps_err orders_write_rest(const ps_coord_orders *o, bool over, ps_mp_writer *w)
{
    const ps_sync *s = ps_sync_fragments_last(&o->sync);
    char *figures;
    PS_TRY(orders_figures(&o->sync, &figures));
    const ps_sync_rest rest = {.step = s->done,
                               .version = s->version,
                               .over = over,
                               .figures = {figures, strlen(figures)},
                               .lines = {o->record, record_piece(o, 0)},
                               .more = o->record_bytes > 0 ? record_pieces(o) - 1 : 0};
    ps_sync_rest_write(w, &rest);
    free(figures);
    return ps_mp_writer_end(w);
}

/* The first piece, which worker 0 waits for, comes last. */
static ps_err orders_publish(ps_coord_orders *o, bool over)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    const uint64_t n = o->n_rests++;
    const ps_job_key key = ps_job_key_rest(n);
    o->placed = false;
    ps_err err = orders_write_rest(o, over, &w);
    for (uint32_t k = 1; k < record_pieces(o) && err == PS_OK; k++) {
        const size_t at = (size_t)k * PIECE_BYTES;
        err = o->hooks.store(o->hooks.owner, ps_job_key_rest_piece(n, k).text,
                             o->record + at, record_piece(o, at));
    }
    if (err == PS_OK) err = o->hooks.store(o->hooks.owner, key.text, w.base, w.used);
    ps_mp_writer_fini(&w);
    o->record_bytes = 0;
    return err;
}

/* A grace begins once, and ends with the order that it waited for. */
static void set_graces(ps_coord_orders *o)
{
    for (uint32_t i = 0; i < o->sync.n; i++)
        if (!ps_sync_graces(&o->sync.parts[i]))
            o->grace[i].at_ns = UINT64_MAX;
        else if (o->grace[i].at_ns == UINT64_MAX)
            o->grace[i] = ps_deadline_in_ms(orders_rules_of(o)->grace_ms);
}

static ps_err orders_give(ps_coord_orders *o, const ps_sync_order *order)
{
    kept_order *kept;
    PS_TRY(keep_order(o, order, &kept));
    PS_TRY(note_order(o, order));
    if (order->rest) PS_TRY(orders_publish(o, order->over));
    const ps_control c = message_of(kept);
    for (uint32_t i = 0; i < o->n_askers; i++)
        o->hooks.send(o->hooks.owner, &o->askers[i], &c);
    PS_FAULT_POINT("order.given");
    return PS_OK;
}

static ps_err orders_decide(ps_coord_orders *o)
{
    for (;;) {
        ps_sync_order order;
        bool any;
        PS_TRY(ps_sync_fragments_decide(&o->sync, &order, &any));
        set_graces(o);
        if (!any) return PS_OK;
        PS_TRY(orders_give(o, &order));
    }
}

static ps_err set_batches(ps_coord_orders *o, const void *value, size_t bytes)
{
    uint64_t batches[PS_MAX_RANKS];
    PS_TRY(ps_sync_batches_read(value, bytes, batches, orders_rules_of(o)->n_workers));
    return ps_sync_fragments_set_batches(&o->sync, batches);
}

ps_err ps_coord_orders_set(ps_coord_orders *o, const char *key, const void *value,
                           size_t bytes)
{
    if (strcmp(key, PS_JOB_KEY_POLICY_BATCHES) == 0) return set_batches(o, value, bytes);
    if (strcmp(key, ps_job_key_reentry(o->n_rests).text) == 0) o->placed = true;
    if (strcmp(key, PS_JOB_KEY_POLICY_END) != 0) return PS_OK;
    ps_sync_end(ps_sync_fragments_last(&o->sync));
    return orders_decide(o);
}

ps_deadline ps_coord_orders_deadline(const ps_coord_orders *o)
{
    ps_deadline next = o->grace[0];
    for (uint32_t i = 1; i < o->sync.n; i++)
        if (o->grace[i].at_ns < next.at_ns) next = o->grace[i];
    return next;
}

ps_err ps_coord_orders_expire(ps_coord_orders *o)
{
    bool any = false;
    for (uint32_t i = 0; i < o->sync.n; i++) {
        if (!ps_deadline_passed(o->grace[i])) continue;
        ps_sync_grace_over(&o->sync.parts[i]);
        any = true;
    }
    return any ? orders_decide(o) : PS_OK;
}

/* --- pushes ---------------------------------------------------------------------------
 */

static ps_err orders_begin(ps_coord_orders *o, uint64_t n_shards)
{
    enum { MOST = 1 << 26 }; // numbers to be kept
    if (n_shards == 0 || n_shards > UINT16_MAX || n_shards * n_pushes(o) > MOST)
        return ps_err_set(PS_ERR_PROTOCOL, "a push of %" PRIu64 " shards", n_shards);
    const size_t n = (size_t)n_shards;
    PS_TRY(PS_NEW(&o->askers, n, "the policy"));
    PS_TRY(PS_NEW(&o->told, n * n_pushes(o), "the policy"));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n_pushes(o); k++)
            o->told[i * n_pushes(o) + k] = o->pushes[k].number;
    o->n_shards = (uint32_t)n_shards;
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

/* A shard without chunks of the first fragments has missed orders for these. */
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
    return repeat_orders(o, from, 1);
}

static ps_err count_in(ps_coord_orders *o, uint32_t asker, const ps_control *c)
{
    const uint64_t rank = c->pushed.rank, number = c->pushed.number;
    const uint64_t fragment = c->pushed.fragment, holders = c->pushed.holders;
    if (rank >= orders_rules_of(o)->n_workers || fragment >= o->sync.n || holders == 0 ||
        holders > o->n_shards)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a push of worker %" PRIu64 ", of fragment %" PRIu64
                          " in %" PRIu64 " shards",
                          rank, fragment, holders);
    const size_t index = push_of(o, (uint32_t)fragment, (uint32_t)rank);
    uint64_t *told = &o->told[asker * n_pushes(o) + index];
    arriving *push = &o->pushes[index];
    if (number < *told) return PS_OK; // a repetition
    if (number != *told || number != push->number)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "push %" PRIu64 " of worker %" PRIu64 " out of turn", number,
                          rank);
    ++*told;
    if (++push->n_in < holders) return PS_OK;
    push->number++;
    push->n_in = 0;
    PS_TRY(ps_sync_fragments_push(&o->sync, (uint32_t)fragment, (uint32_t)rank));
    return orders_decide(o);
}

ps_err ps_coord_orders_pushed(ps_coord_orders *o, const ps_control_id *from,
                              const ps_control *c)
{
    uint32_t asker = 0;
    if (!o->askers) PS_TRY(orders_begin(o, c->pushed.shards));
    if (c->pushed.shards != o->n_shards)
        return ps_err_set(PS_ERR_PROTOCOL, "a push of %" PRIu64 " shards, not %u",
                          c->pushed.shards, o->n_shards);
    PS_TRY(find_asker(o, from, &asker));
    if (c->pushed.next_order > 0) PS_TRY(repeat_orders(o, from, c->pushed.next_order));
    return count_in(o, asker, c);
}

/* --- a worker that comes back ---------------------------------------------------------
 */

bool ps_coord_orders_may_lose(const ps_coord_orders *o, int rank)
{
    return o && o->placed && o->n_askers == o->n_shards &&
           ps_sync_fragments_may_lose(&o->sync, (uint32_t)rank);
}

bool ps_coord_orders_end(const ps_coord_orders *o)
{
    return o && ps_sync_fragments_last(&o->sync)->ends;
}

uint64_t ps_coord_orders_closed(const ps_coord_orders *o)
{
    if (!o || o->script || !orders_rules_of(o)->cuts) return 0;
    return o->n_rests + ps_sync_is_late(ps_sync_fragments_last(&o->sync));
}

/* The number of a worker's newest push, or of the one that comes next. */
static uint64_t newest_push(const ps_coord_orders *o, uint32_t rank)
{
    uint64_t newest = 0;
    for (uint32_t i = 0; i < o->sync.n; i++) {
        const uint64_t number = o->pushes[push_of(o, i, rank)].number;
        if (number > newest) newest = number;
    }
    return newest;
}

/* Nothing that the dead process has sent counts from here on: its pushes have lower
 * numbers. */
ps_err ps_coord_orders_lose(ps_coord_orders *o, int rank)
{
    ps_sync_entry entry = {.rank = (uint32_t)rank};
    const uint64_t next = newest_push(o, (uint32_t)rank) + 1;
    for (uint32_t f = 0; f < o->sync.n; f++) {
        const size_t index = push_of(o, f, (uint32_t)rank);
        o->pushes[index] = (arriving){.number = next};
        for (uint32_t i = 0; i < o->n_shards; i++)
            o->told[i * n_pushes(o) + index] = next;
    }
    ps_sync_fragments_lose(&o->sync, (uint32_t)rank);
    const ps_sync_order back = {.version = ps_sync_fragments_last(&o->sync)->version,
                                .back = next,
                                .n = 1,
                                .entries = &entry};
    PS_TRY(orders_give(o, &back));
    return orders_decide(o);
}

ps_coord_orders_reentry ps_coord_orders_reentry_of(const ps_coord_orders *o, int rank)
{
    return (ps_coord_orders_reentry){
        .push = newest_push(o, (uint32_t)rank),
        .stretch = o->n_rests,
        .fragment = o->sync.next[rank],
        .made = ps_sync_fragments_last(&o->sync)->workers[rank].clock};
}
