#include "sync_codec.h"

#include <string.h>

/* --- rules ---------------------------------------------------------------------------
 */

typedef struct rules_message {
    ps_sync_rules rules; // first: the table's offsets are its own
    uint32_t n_fragments;
    ps_map_list batches;
    ps_map_bytes script;
} rules_message;

static const ps_map_field rules_fields[] = {
    PS_MAP_FIELD(ps_sync_rules, kind, U32, PS_POLICY_ASP),
    PS_MAP_FIELD(ps_sync_rules, backups, U32, PS_MAX_RANKS),
    PS_MAP_FIELD(ps_sync_rules, add, BOOL, 0),
    PS_MAP_FIELD(ps_sync_rules, come_back, BOOL, 0),
    PS_MAP_FIELD(ps_sync_rules, cuts, BOOL, 0),
    PS_MAP_FIELD(ps_sync_rules, grace_ms, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_rules, staleness, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_rules, correction, U32, PS_CORRECTION_DELAY),
    PS_MAP_FIELD(ps_sync_rules, delay_strength, DOUBLE, 0),
    PS_MAP_FIELD(ps_sync_rules, first, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_rules, number, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_rules, version, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_rules, total, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_rules, stretch, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_rules, pause, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_rules, stop, U64, UINT64_MAX),
    {"fragments", offsetof(rules_message, n_fragments), PS_MAP_U32, PS_MAX_FRAGMENTS,
     NULL},
    {"batches", offsetof(rules_message, batches), PS_MAP_NUMBERS, 0, NULL},
    {"script", offsetof(rules_message, script), PS_MAP_BYTES, SIZE_MAX, NULL},
};
static const ps_map rules_map = PS_MAP_OF(rules_fields, rules_message);

void ps_sync_rules_write(ps_mp_writer *w, const ps_sync_rules *rules,
                         uint32_t n_fragments, const uint64_t *batches)
{
    const rules_message m = {
        .rules = *rules,
        .n_fragments = n_fragments,
        .batches = {(void *)(uintptr_t)batches, rules->n_workers}, // only read
        .script = {rules->script, rules->script ? strlen(rules->script) : 0}};
    ps_map_write(w, &rules_map, &m);
}

ps_err ps_sync_rules_read(const void *value, size_t bytes, ps_sync_rules *out,
                          uint32_t *n_fragments, uint64_t *batches, ps_map_bytes *script)
{
    rules_message m = {.batches = {batches, PS_MAX_RANKS}};
    PS_TRY(ps_map_read(value, bytes, &rules_map, "the policy", &m));
    if (m.n_fragments == 0)
        return ps_err_set(PS_ERR_PROTOCOL, "the policy: a model without fragments");
    *out = m.rules;
    out->n_workers = (uint32_t)m.batches.n;
    *n_fragments = m.n_fragments;
    *script = m.script;
    return PS_OK;
}

static const ps_map_field batches_fields[] = {{"batches", 0, PS_MAP_NUMBERS, 0, NULL}};
static const ps_map batches_map = PS_MAP_OF(batches_fields, ps_map_list);

void ps_sync_batches_write(ps_mp_writer *w, const uint64_t *batches, uint32_t n_workers)
{
    const ps_map_list list = {(void *)(uintptr_t)batches, n_workers}; // only read
    ps_map_write(w, &batches_map, &list);
}

ps_err ps_sync_batches_read(const void *value, size_t bytes, uint64_t *batches,
                            uint32_t n_workers)
{
    ps_map_list list = {batches, n_workers};
    PS_TRY(ps_map_read(value, bytes, &batches_map, "the policy's batches", &list));
    if (list.n == n_workers) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "the policy's batches: %zu of %u workers", list.n,
                      n_workers);
}

/* --- orders --------------------------------------------------------------------------
 */

typedef struct order_message {
    ps_sync_order order; // first, likewise
    ps_map_list entries;
} order_message;

static const ps_map_field entry_fields[] = {
    PS_MAP_FIELD(ps_sync_entry, rank, U32, PS_MAX_RANKS - 1),
    PS_MAP_FIELD(ps_sync_entry, applied, BOOL, 0),
    PS_MAP_FIELD(ps_sync_entry, answered, BOOL, 0),
    PS_MAP_FIELD(ps_sync_entry, factor, FLOAT, 0),
    PS_MAP_FIELD(ps_sync_entry, compensation, FLOAT, 0),
};
static const ps_map entry_map = PS_MAP_OF(entry_fields, ps_sync_entry);

static const ps_map_field order_fields[] = {
    PS_MAP_FIELD(ps_sync_order, fragment, U32, PS_MAX_FRAGMENTS - 1),
    PS_MAP_FIELD(ps_sync_order, version, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_order, step, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_order, applies, BOOL, 0),
    PS_MAP_FIELD(ps_sync_order, share, DOUBLE, 0),
    PS_MAP_FIELD(ps_sync_order, rest, BOOL, 0),
    PS_MAP_FIELD(ps_sync_order, over, BOOL, 0),
    PS_MAP_FIELD(ps_sync_order, back, U64, UINT64_MAX),
    {"entries", offsetof(order_message, entries), PS_MAP_LIST, 0, &entry_map},
};
static const ps_map order_map = PS_MAP_OF(order_fields, order_message);

void ps_sync_order_write(ps_mp_writer *w, const ps_sync_order *order)
{
    const order_message m = {*order, {order->entries, order->n}};
    ps_map_write(w, &order_map, &m);
}

ps_err ps_sync_order_read(const void *value, size_t bytes, ps_sync_entry *entries,
                          uint32_t n_workers, ps_sync_order *out)
{
    order_message m = {.entries = {entries, n_workers}};
    PS_TRY(ps_map_read(value, bytes, &order_map, "an order", &m));
    if (!(m.order.share >= 0 && m.order.share <= 1))
        return ps_err_set(PS_ERR_PROTOCOL, "an order: share is %g of a step",
                          m.order.share);
    for (size_t i = 0; i < m.entries.n; i++)
        if (entries[i].rank >= n_workers ||
            (i > 0 && entries[i].rank <= entries[i - 1].rank))
            return ps_err_set(PS_ERR_PROTOCOL, "an order: rank %u is out of turn",
                              entries[i].rank);
    *out = m.order;
    out->entries = entries;
    out->n = (uint32_t)m.entries.n;
    return PS_OK;
}

/* --- a rest --------------------------------------------------------------------------
 */

static const ps_map_field rest_fields[] = {
    PS_MAP_FIELD(ps_sync_rest, step, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_rest, version, U64, UINT64_MAX),
    PS_MAP_FIELD(ps_sync_rest, over, BOOL, 0),
    PS_MAP_FIELD(ps_sync_rest, figures, BYTES, 1 << 20),
    PS_MAP_FIELD(ps_sync_rest, lines, BYTES, SIZE_MAX),
    PS_MAP_FIELD(ps_sync_rest, more, U32, UINT32_MAX),
};
static const ps_map rest_map = PS_MAP_OF(rest_fields, ps_sync_rest);

void ps_sync_rest_write(ps_mp_writer *w, const ps_sync_rest *rest)
{
    ps_map_write(w, &rest_map, rest);
}

ps_err ps_sync_rest_read(const void *value, size_t bytes, ps_sync_rest *out)
{
    return ps_map_read(value, bytes, &rest_map, "the policy's record", out);
}
