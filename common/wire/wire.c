#include "wire.h"

#include "mp.h"

/* Gradients, rows and their files are what lies in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "messages and files are little-endian");

enum { COMMON_ITEMS = 5 };

/* What kinds say beside what all say: its bit, the member of ps_wire_header, its largest
 * value. */
#define FIELD_MAP(X)                                                                     \
    X(STEP, 1, step, UINT64_MAX)                                                         \
    X(CHUNK, 2, chunk, UINT32_MAX)                                                       \
    X(CODEC, 4, codec, UINT8_MAX)                                                        \
    X(COUNT, 8, count, UINT64_MAX)                                                       \
    X(CREDIT, 16, credit, UINT64_MAX)                                                    \
    X(NUMBER, 32, hello.number, UINT64_MAX)                                              \
    X(RINGS, 64, hello.rings, 1)                                                         \
    X(BACK, 65536, hello.back, UINT64_MAX)                                               \
    X(GROUPS, 128, push.groups, UINT64_MAX)                                              \
    X(SCALE, 256, weights.scale, UINT32_MAX)                                             \
    X(FLAGS, 512, weights.flags, PS_WIRE_REST | PS_WIRE_OVER | PS_WIRE_DROPPED)          \
    X(ARRAY, 1024, state.array, UINT64_MAX)                                              \
    X(PRESENT, 2048, stale.present, UINT32_MAX)                                          \
    X(STEP_OF, 4096, push.step_of, UINT32_MAX)                                           \
    X(RETURNS, 8192, bye.returns, 1)                                                     \
    X(MESSAGE, 16384, rows.number, UINT64_MAX)                                           \
    X(AT, 32768, rows.at, UINT64_MAX)

enum field {
#define FIELD_BIT(name, bit, member, largest) name = (bit),
    FIELD_MAP(FIELD_BIT)
#undef FIELD_BIT
        N_FIELDS = 17,
    RANGE = STEP | CHUNK | CODEC | COUNT,
    NEW = RANGE | CREDIT | SCALE | FLAGS,
    PIECE = STEP | COUNT | MESSAGE | AT,
    WHOLE = COUNT | MESSAGE
};

static const unsigned says[] = {
    [PS_MSG_HELLO] = CODEC | NUMBER | RINGS | BACK,
    [PS_MSG_INIT] = RANGE,
    [PS_MSG_PUSH] = RANGE | GROUPS | STEP_OF,
    [PS_MSG_PULL] = STEP | CHUNK,
    [PS_MSG_BYE] = RETURNS,
    [PS_MSG_EXACT] = STEP | CHUNK,
    [PS_MSG_FETCH] = STEP | CHUNK | CODEC | ARRAY,
    [PS_MSG_RESTORE] = RANGE | ARRAY,
    [PS_MSG_GROUPS] = STEP | COUNT,
    [PS_MSG_PULL_ROWS] = PIECE,
    [PS_MSG_PUSH_ROWS] = PIECE,
    [PS_MSG_LOAD_ROWS] = PIECE,
    [PS_MSG_SAVE_ROWS] = PIECE,
    [PS_MSG_KEEP_ROWS] = PIECE,
    [PS_MSG_RETURN_ROWS] = PIECE,
    [PS_MSG_READY] = CREDIT | NUMBER,
    [PS_MSG_WEIGHTS] = NEW,
    [PS_MSG_CREDIT] = CREDIT,
    [PS_MSG_STALE] = CREDIT | PRESENT,
    [PS_MSG_ERROR] = CREDIT,
    [PS_MSG_EXACT_WEIGHTS] = NEW,
    [PS_MSG_LEFT] = CREDIT,
    [PS_MSG_STATE] = RANGE | CREDIT | ARRAY,
    [PS_MSG_RESTORED] = CHUNK | CREDIT | ARRAY,
    [PS_MSG_ROWS] = PIECE | CREDIT,
    [PS_MSG_ASK_TABLES] = MESSAGE,
    [PS_MSG_READ_ROWS] = WHOLE,
    [PS_MSG_TABLES] = WHOLE,
    [PS_MSG_READ] = WHOLE | STEP,
    [PS_MSG_SOON] = MESSAGE,
    [PS_MSG_TWIN_POINT] = WHOLE,
    [PS_MSG_TWIN_ROWS] = WHOLE,
    [PS_MSG_TWIN_ASK] = WHOLE,
    [PS_MSG_TWIN] = WHOLE,
};

typedef struct kind_rule {
    const char *name;
    enum { SHARD, WORKER, READER, SERVER } sender;
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

/* 0 for an unknown kind. */
static unsigned fields_of(int kind)
{
    return rule_of(kind) ? says[kind] : 0;
}

void ps_wire_encode(const ps_wire_header *h, uint8_t out[PS_WIRE_HEADER_MAX],
                    size_t *bytes)
{
    // The widest one (STATE) has 1 + 2 * 2 + 9 + 2 * 5 + 9 + 5 + 2 + 3 * 9 = 67 bytes.
    const unsigned fields = fields_of(h->kind);
    ps_mp_writer w;
    ps_mp_writer_init_fixed(&w, out, PS_WIRE_HEADER_MAX);
    ps_mp_write_array(&w, COMMON_ITEMS + (uint32_t)__builtin_popcount(fields));
    ps_mp_write_uint(&w, h->version);
    ps_mp_write_uint(&w, h->kind);
    ps_mp_write_uint(&w, h->nonce);
    ps_mp_write_uint(&w, h->epoch);
    ps_mp_write_uint(&w, h->rank);
#define WRITE_FIELD(name, bit, member, largest)                                          \
    if (fields & (bit)) ps_mp_write_uint(&w, h->member);
    FIELD_MAP(WRITE_FIELD)
#undef WRITE_FIELD
    *bytes = w.used;
}

static ps_err check_header(const ps_wire_header *h)
{
    if (h->version != PS_WIRE_VERSION)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a message of protocol version %d, this program speaks %d: use "
                          "the same version everywhere",
                          h->version, PS_WIRE_VERSION);
    if (!rule_of(h->kind))
        return ps_err_set(PS_ERR_PROTOCOL, "a message of unknown kind %d", h->kind);
    return PS_OK;
}

ps_err ps_wire_decode(const void *frame, size_t bytes, ps_wire_header *h)
{
    *h = (ps_wire_header){0};
    ps_mp_reader r;
    ps_mp_reader_init(&r, frame, bytes);
    const size_t n = ps_mp_read_array(&r, COMMON_ITEMS + N_FIELDS);
    if (n < COMMON_ITEMS)
        return ps_err_set(PS_ERR_PROTOCOL, "%zu bytes that are not a message header",
                          bytes);
    h->version = (uint8_t)ps_mp_read_uint(&r, UINT8_MAX);
    h->kind = (uint8_t)ps_mp_read_uint(&r, UINT8_MAX);
    h->nonce = ps_mp_read_uint(&r, UINT64_MAX);
    h->epoch = (uint32_t)ps_mp_read_uint(&r, UINT32_MAX);
    h->rank = (uint32_t)ps_mp_read_uint(&r, UINT32_MAX);
    if (!r.failed) PS_TRY(check_header(h));
    const unsigned fields = fields_of(h->kind);
    if (r.failed || n != COMMON_ITEMS + (size_t)__builtin_popcount(fields))
        return ps_err_set(PS_ERR_PROTOCOL, "a message header of %zu bytes is malformed",
                          bytes);
#define READ_FIELD(name, bit, member, largest)                                           \
    if (fields & (bit)) h->member = (__typeof__(h->member))ps_mp_read_uint(&r, largest);
    FIELD_MAP(READ_FIELD)
#undef READ_FIELD
    if (!ps_mp_reader_end(&r))
        return ps_err_set(PS_ERR_PROTOCOL, "a message header of %zu bytes is malformed",
                          bytes);
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
    return h->codec != PS_CODEC_SHM && h->codec != PS_CODEC_IDLE &&
           ps_wire_kind_has_payload(h->kind);
}

bool ps_wire_from_worker(int kind)
{
    const kind_rule *rule = rule_of(kind);
    return rule && rule->sender == WORKER;
}

bool ps_wire_from_reader(int kind)
{
    const kind_rule *rule = rule_of(kind);
    return rule && rule->sender == READER;
}

bool ps_wire_from_server(int kind)
{
    const kind_rule *rule = rule_of(kind);
    return rule && rule->sender == SERVER;
}

const char *ps_wire_kind_name(int kind)
{
    const kind_rule *rule = rule_of(kind);
    return rule ? rule->name : "unknown";
}
