/* The door's reader of ZMTP: any bytes from anybody. What it says must not depend on how
 * the bytes are cut into parts. */
#include <stdint.h>
#include <stdlib.h>

#include "zmtp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FRAME_MAX = 300 };

static uint64_t mixed(uint64_t h, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * UINT64_C(0x100000001b3);
    return h;
}

static uint64_t heard(const uint8_t *data, size_t size, size_t part)
{
    uint64_t h = 1;
    ps_zmtp z;
    ps_zmtp_init(&z, FRAME_MAX);
    for (size_t i = 0; i < size; i += part) {
        if (ps_zmtp_put(&z, data + i, size - i < part ? size - i : part) != PS_OK) break;
        const uint8_t *at;
        size_t n;
        ps_zmtp_event e;
        while ((e = ps_zmtp_next(&z, &at, &n)) != PS_ZMTP_NOTHING) {
            h = mixed(h, (const uint8_t[]){(uint8_t)e}, 1);
            if (e == PS_ZMTP_WRONG) goto end;
            h = mixed(h, at, n);
        }
    }
end:
    h = mixed(h, z.id, z.id_bytes);
    ps_zmtp_fini(&z);
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint64_t whole = heard(data, size, size + 1);
    if (heard(data, size, 1) != whole || heard(data, size, 7) != whole) abort();
    return 0;
}
