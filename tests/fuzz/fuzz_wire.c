/* The data plane's frame decoder: any bytes as frame 1. What it takes must come back the
 * same from the encoder. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int same(const ps_wire_header *a, const ps_wire_header *b)
{
    return a->version == b->version && a->kind == b->kind && a->codec == b->codec &&
           a->nonce == b->nonce && a->epoch == b->epoch && a->rank == b->rank &&
           a->step == b->step && a->chunk == b->chunk && a->count == b->count &&
           a->credit == b->credit && a->rows.number == b->rows.number &&
           a->rows.at == b->rows.at; // these two cover the other members
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ps_wire_header h, again;
    if (ps_wire_decode(data, size, &h) != PS_OK) return 0;
    uint8_t out[PS_WIRE_HEADER_MAX];
    size_t bytes;
    ps_wire_encode(&h, out, &bytes);
    if (ps_wire_decode(out, bytes, &again) != PS_OK || !same(&h, &again)) abort();
    if (strcmp(ps_wire_kind_name(h.kind), "unknown") == 0) abort();
    return 0;
}
