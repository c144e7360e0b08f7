#include "wire.h"

#include "mp.h"

enum { HEADER_ITEMS = 12 };

typedef struct kind_rule {
    const char *name;
    enum { SHARD, WORKER } sender;
    bool payload;
} kind_rule;

/* NULL for an unknown kind. */
static const kind_rule *rule_of(int kind)
{
    static const kind_rule rules[] = {
#define KIND_RULE(name, number, sender, payload) [number] = {#name, sender, payload},
        PS_MSG_MAP(KIND_RULE)
#undef KIND_RULE
    };
    const int n = sizeof rules / sizeof *rules;
    return kind >= 0 && kind < n && rules[kind].name ? &rules[kind] : NULL;
}

void ps_wire_encode(const ps_wire_header *h, uint8_t out[PS_WIRE_HEADER_MAX],
                    size_t *bytes)
{
    // The widest header has 1 + 3 * 2 + 4 * 5 + 5 * 9 = 72 bytes: it always fits.
    ps_mp_writer w;
    ps_mp_writer_init_fixed(&w, out, PS_WIRE_HEADER_MAX);
    ps_mp_write_array(&w, HEADER_ITEMS);
    ps_mp_write_uint(&w, h->version);
    ps_mp_write_uint(&w, h->kind);
    ps_mp_write_uint(&w, h->nonce);
    ps_mp_write_uint(&w, h->epoch);
    ps_mp_write_uint(&w, h->rank);
    ps_mp_write_uint(&w, h->step);
    ps_mp_write_uint(&w, h->chunk);
    ps_mp_write_uint(&w, h->codec);
    ps_mp_write_uint(&w, h->count);
    ps_mp_write_uint(&w, h->credit);
    ps_mp_write_uint(&w, h->place);
    ps_mp_write_uint(&w, h->scale);
    *bytes = w.used;
}

ps_err ps_wire_decode(const void *frame, size_t bytes, ps_wire_header *h)
{
    *h = (ps_wire_header){0};
    ps_mp_reader r;
    ps_mp_reader_init(&r, frame, bytes);
    if (ps_mp_read_array(&r, HEADER_ITEMS) != HEADER_ITEMS)
        return ps_err_set(PS_ERR_PROTOCOL, "%zu bytes that are not a message header",
                          bytes);
    h->version = (uint8_t)ps_mp_read_uint(&r, UINT8_MAX);
    h->kind = (uint8_t)ps_mp_read_uint(&r, UINT8_MAX);
    h->nonce = ps_mp_read_uint(&r, UINT64_MAX);
    h->epoch = (uint32_t)ps_mp_read_uint(&r, UINT32_MAX);
    h->rank = (uint32_t)ps_mp_read_uint(&r, UINT32_MAX);
    h->step = ps_mp_read_uint(&r, UINT64_MAX);
    h->chunk = (uint32_t)ps_mp_read_uint(&r, UINT32_MAX);
    h->codec = (uint8_t)ps_mp_read_uint(&r, UINT8_MAX);
    h->count = ps_mp_read_uint(&r, UINT64_MAX);
    h->credit = ps_mp_read_uint(&r, UINT64_MAX);
    h->place = ps_mp_read_uint(&r, UINT64_MAX);
    h->scale = (uint32_t)ps_mp_read_uint(&r, UINT32_MAX);
    if (!ps_mp_reader_end(&r))
        return ps_err_set(PS_ERR_PROTOCOL, "a message header of %zu bytes is malformed",
                          bytes);
    if (h->version != PS_WIRE_VERSION)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a message of protocol version %d, this program speaks %d: use "
                          "the same version everywhere",
                          h->version, PS_WIRE_VERSION);
    if (!rule_of(h->kind))
        return ps_err_set(PS_ERR_PROTOCOL, "a message of unknown kind %d", h->kind);
    if (h->codec >= PS_CODEC_COUNT)
        return ps_err_set(PS_ERR_PROTOCOL, "a message with unknown codec %d", h->codec);
    return PS_OK;
}

bool ps_wire_kind_has_payload(int kind)
{
    const kind_rule *rule = rule_of(kind);
    return rule && rule->payload;
}

bool ps_wire_has_payload(const ps_wire_header *h)
{
    return h->codec != PS_CODEC_SHM && ps_wire_kind_has_payload(h->kind);
}

bool ps_wire_from_worker(int kind)
{
    const kind_rule *rule = rule_of(kind);
    return rule && rule->sender == WORKER;
}

const char *ps_wire_kind_name(int kind)
{
    const kind_rule *rule = rule_of(kind);
    return rule ? rule->name : "unknown";
}
