#include "secret.h"

#include <sys/random.h>

ps_err ps_secret_draw(ps_secret *out)
{
    if (getrandom(out->bytes, sizeof out->bytes, 0) == (ssize_t)sizeof out->bytes)
        return PS_OK;
    return ps_err_errno(PS_ERR_IO, "drawing a member's secret");
}

bool ps_secret_is(const ps_secret *s, const void *bytes, size_t n)
{
    if (n != sizeof s->bytes) return false;
    const uint8_t *p = bytes;
    unsigned differs = 0;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned)(s->bytes[i] ^ p[i]);
    return differs == 0;
}
