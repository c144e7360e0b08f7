#include "rest_record.h"

#include <stdlib.h>
#include <string.h>

#include "job_keys.h"

/* Takes a value out of the coordinator's store; *value is owned by the caller. */
static ps_err record_take(ps_member *m, const ps_job_key *key, uint64_t timeout_ms,
                          void **value, size_t *bytes)
{
    PS_TRY(ps_member_get(m, key->text, value, bytes, ps_deadline_in_ms(timeout_ms)));
    return ps_member_drop(m, key->text, ps_deadline_in_ms(timeout_ms));
}

static ps_err record_append(ps_rest_record *r, const void *from, size_t bytes)
{
    ps_map_bytes *lines = &r->rest.lines;
    char *longer = realloc(r->lines, lines->n + bytes + 1);
    if (!longer)
        return ps_err_set(PS_ERR_NOMEM, "no memory for %zu bytes of the policy's record",
                          lines->n + bytes);
    if (!r->lines) memcpy(longer, lines->at, lines->n);
    memcpy(longer + lines->n, from, bytes);
    r->lines = longer;
    *lines = (ps_map_bytes){longer, lines->n + bytes};
    return PS_OK;
}

ps_err ps_rest_record_fetch(ps_member *m, uint64_t n, uint64_t timeout_ms,
                            ps_rest_record *out)
{
    size_t bytes;
    ps_job_key key = ps_job_key_rest(n);
    *out = (ps_rest_record){0};
    PS_TRY(record_take(m, &key, timeout_ms, &out->value, &bytes));
    PS_TRY(ps_sync_rest_read(out->value, bytes, &out->rest));
    for (uint32_t k = 1; k <= out->rest.more; k++) {
        void *piece = NULL;
        key = ps_job_key_rest_piece(n, k);
        ps_err err = record_take(m, &key, timeout_ms, &piece, &bytes);
        if (err == PS_OK) err = record_append(out, piece, bytes);
        free(piece);
        PS_TRY(err);
    }
    return PS_OK;
}

void ps_rest_record_fini(ps_rest_record *r)
{
    free(r->value);
    free(r->lines);
    *r = (ps_rest_record){0};
}
