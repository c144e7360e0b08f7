#include "event_file.h"

#include <limits.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "regular_file.h"

enum { TAG_MAX = 63, RECORD_MAX = 80 + PS_EVENT_SCALARS_MAX * (TAG_MAX + 16) };

/* Wire types: https://protobuf.dev/programming-guides/encoding */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

typedef struct record {
    size_t n;
    uint8_t bytes[RECORD_MAX];
} record;

/* CRC-32C (RFC 3720, B.4), bit by bit: a record has some hundred bytes. */
static uint32_t event_file_crc32c(const uint8_t *bytes, size_t n)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (UINT32_C(0x82F63B78) & (0 - (crc & 1)));
    }
    return ~crc;
}

static uint32_t masked_crc(const uint8_t *bytes, size_t n)
{
    const uint32_t crc = event_file_crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static void add_byte(record *r, uint8_t byte)
{
    if (r->n < sizeof r->bytes) r->bytes[r->n++] = byte;
}

static void add_varint(record *r, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        add_byte(r, (uint8_t)(v | 0x80));
    add_byte(r, (uint8_t)v);
}

static void add_key(record *r, int field, int type)
{
    add_byte(r, (uint8_t)(field << 3 | type)); // fields below 16
}

static void add_little(record *r, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        add_byte(r, (uint8_t)(v >> (8 * i)));
}

static void add_double(record *r, int field, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    add_key(r, field, FIXED64);
    add_little(r, bits, 8);
}

static void add_float(record *r, int field, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    add_key(r, field, FIXED32);
    add_little(r, bits, 4);
}

static void add_bytes(record *r, int field, const void *bytes, size_t n)
{
    add_key(r, field, BYTES);
    add_varint(r, n);
    for (size_t i = 0; i < n; i++)
        add_byte(r, ((const uint8_t *)bytes)[i]);
}

static void begin_event(record *event, uint64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    event->n = 0;
    add_double(event, 1, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    add_key(event, 2, VARINT);
    add_varint(event, step);
}

static ps_err event_file_write_record(ps_event_file *e, const record *r)
{
    record whole = {0};
    add_little(&whole, r->n, 8);
    add_little(&whole, masked_crc(whole.bytes, 8), 4);
    for (size_t i = 0; i < r->n; i++)
        add_byte(&whole, r->bytes[i]);
    add_little(&whole, masked_crc(r->bytes, r->n), 4);
    return ps_regular_file_append(e->file, whole.bytes, whole.n);
}

/* The first record says the version; the next, that a session begins at the step. */
static ps_err write_start(ps_event_file *e, uint64_t first_step)
{
    static const char version[] = "brain.Event:2";
    static const uint8_t start[] = {1 << 3 | VARINT, 1}; // SessionLog: status START
    record r;
    begin_event(&r, 0);
    add_bytes(&r, 3, version, sizeof version - 1);
    PS_TRY(event_file_write_record(e, &r));
    begin_event(&r, first_step);
    add_bytes(&r, 7, start, sizeof start);
    return event_file_write_record(e, &r);
}

ps_err ps_event_file_open(ps_event_file *e, const char *folder, uint64_t first_step)
{
    char path[PATH_MAX + 128], host[64] = "";
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (gethostname(host, sizeof host - 1) != 0 || strchr(host, '/')) host[0] = '\0';
    // The nanoseconds: a job that goes on within the second has a file of its own.
    snprintf(path, sizeof path, "%s/events.out.tfevents.%lld.%09ld.%s", folder,
             (long long)now.tv_sec, now.tv_nsec, host[0] ? host : "host");
    e->file = fopen(path, "wxe");
    if (!e->file) return ps_err_errno(PS_ERR_IO, "cannot write %s", path);
    return write_start(e, first_step);
}

void ps_event_file_add(ps_event_file *e, uint64_t step, const ps_event_scalar *scalars,
                       int n)
{
    record event, summary = {0};
    if (!e->file) return;
    for (int i = 0; i < n && i < PS_EVENT_SCALARS_MAX; i++) {
        record value = {0};
        add_bytes(&value, 1, scalars[i].tag, strnlen(scalars[i].tag, TAG_MAX));
        add_float(&value, 2, (float)scalars[i].value);
        add_bytes(&summary, 1, value.bytes, value.n);
    }
    begin_event(&event, step);
    add_bytes(&event, 5, summary.bytes, summary.n);
    const bool full = event_file_write_record(e, &event) != PS_OK;
    if (full && !e->full)
        PS_ERROR("events",
                 "reason=\"TensorBoard's events: %s\" note=\"training goes on without "
                 "them\"",
                 ps_err_message());
    e->full = full;
}

ps_err ps_event_file_close(ps_event_file *e)
{
    FILE *file = e->file;
    e->file = NULL;
    if (file && fclose(file) != 0)
        return ps_err_errno(PS_ERR_IO, "cannot write TensorBoard's events");
    return PS_OK;
}
