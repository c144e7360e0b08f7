#include "buffer_sync.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "job_keys.h"

static ps_err buffer_sync_fetch(const ps_exchange_options *o, const char *key, char *at,
                                uint64_t wanted)
{
    void *value = NULL;
    size_t bytes = 0;
    PS_TRY(ps_member_get(o->member, key, &value, &bytes, ps_exchange_join_deadline(o)));
    ps_err err = PS_OK;
    if (bytes == wanted)
        memcpy(at, value, bytes);
    else
        err = ps_err_set(PS_ERR_PROTOCOL, "%s has %zu bytes, the model %" PRIu64, key,
                         bytes, wanted);
    free(value);
    return err;
}

static ps_err sync_piece(const ps_exchange_options *o, uint64_t number, char *at,
                         uint64_t bytes)
{
    const ps_job_key made = ps_job_key_buffers(number);
    const char *key = made.text;
    if (o->rank == 0)
        PS_TRY(ps_member_put(o->member, key, at, bytes, ps_exchange_join_deadline(o)));
    else
        PS_TRY(buffer_sync_fetch(o, key, at, bytes));
    // Then everybody has them.
    PS_TRY(ps_member_barrier(o->member, key, ps_exchange_join_deadline(o)));
    if (o->rank != 0) return PS_OK;
    return ps_member_drop(o->member, key, ps_exchange_join_deadline(o));
}

/* The first time all of them; frozen parameters, the last ones, do not change later. */
ps_err ps_buffer_sync(const ps_exchange_options *o, uint64_t *n_pieces)
{
    enum { PIECE = 32 << 20 }; // the coordinator keeps no larger values than 64 MiB
    const uint64_t still = *n_pieces > 0 ? o->table->frozen_bytes : 0;
    const uint64_t bytes = o->table->buffer_bytes - still;
    for (uint64_t at = 0; at < bytes && o->world_size > 1; at += PIECE)
        PS_TRY(sync_piece(o, (*n_pieces)++, (char *)o->buffers + at,
                          bytes - at < PIECE ? bytes - at : PIECE));
    return PS_OK;
}
