/* The keys of a job, drawn without files. */
#ifndef PS_TEST_DRAWN_KEYS_H
#define PS_TEST_DRAWN_KEYS_H

#include <string.h>

#include "curve.h"
#include "secret.h"

/* A pair of keys; 0 when it was drawn. */
static inline int draw_keys(ps_curve_key *secret, ps_curve_key *public)
{
    ps_secret drawn;
    if (ps_secret_draw(&drawn) != PS_OK) return -1;
    memcpy(secret->bytes, drawn.bytes, sizeof secret->bytes);
    return ps_curve_public(secret, public) == PS_OK ? 0 : -1;
}

/* What the two roles hold; 0 when they were drawn. */
static inline int draw_job_keys(ps_curve *servers, ps_curve *workers)
{
    *servers = (ps_curve){.on = true, .role = PS_ROLE_SERVER};
    *workers = (ps_curve){.on = true, .role = PS_ROLE_WORKER};
    int failed = draw_keys(&servers->secret, &servers->public_of[PS_ROLE_SERVER]) |
                 draw_keys(&workers->secret, &servers->public_of[PS_ROLE_WORKER]);
    memcpy(workers->public_of, servers->public_of, sizeof workers->public_of);
    return failed;
}

#endif
