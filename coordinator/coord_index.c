#include "coord_index.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* Secrets are random: their first bytes are as good as a hash. Both start with them. */
static size_t home_of(const ps_coord_index *index, const uint8_t *secret)
{
    uint32_t first;
    memcpy(&first, secret, sizeof first);
    return first & (index->n - 1);
}

ps_err ps_coord_index_init(ps_coord_index *index, int n_members)
{
    index->n = 4;
    while (index->n < 2 * (size_t)n_members)
        index->n *= 2;
    return ps_mem_zalloc(&index->places, index->n, sizeof *index->places, "coordinator");
}

void ps_coord_index_fini(ps_coord_index *index)
{
    free(index->places);
    *index = (ps_coord_index){0};
}

void ps_coord_index_renew(ps_coordinator *c)
{
    ps_coord_index *index = &c->index;
    memset(index->places, 0, index->n * sizeof *index->places);
    for (int i = 0; i < c->n_peers; i++) {
        size_t at = home_of(index, c->peers[i].secret.bytes);
        while (index->places[at])
            at = (at + 1) & (index->n - 1);
        index->places[at] = i + 1;
    }
}

ps_coord_peer *ps_coord_index_find(ps_coordinator *c, const ps_control_id *id)
{
    const ps_coord_index *index = &c->index;
    size_t at = home_of(index, id->bytes);
    for (; index->places[at]; at = (at + 1) & (index->n - 1)) {
        ps_coord_peer *p = &c->peers[index->places[at] - 1];
        if (ps_control_id_is_of(id, &p->secret)) return p;
    }
    return NULL;
}
