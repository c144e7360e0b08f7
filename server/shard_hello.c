#include "shard_hello.h"

#include "shard_reply.h"

/* Whether gradients come through rings is agreed on like the path of payloads. */
static ps_err take_rings(ps_shard *s, ps_shard_peer *p, const ps_wire_header *h)
{
    const bool wanted = h->place == PS_WIRE_HELLO_RINGS;
    if (p->joined && wanted != (p->rings.bell != NULL))
        return ps_err_set(PS_ERR_PROTOCOL, "a HELLO that differs from its first one");
    if (p->joined || !wanted) return PS_OK;
    void *base = p->shm ? ps_shm_door_rings_of(s->door, h->rank) : NULL;
    if (!base)
        return ps_err_set(PS_ERR_PROTOCOL, "a HELLO with rings that are not mapped here");
    p->rings = ps_wire_rings_at(base, s->o.plan, s->groups.n, s->index);
    s->n_rings++;
    return PS_OK;
}

ps_err ps_shard_hello(ps_shard *s, const ps_wire_header *h)
{
    ps_shard_peer *p = &s->peers[h->rank];
    // Another process's: they are counted from 1.
    if (s->own_pace && p->joined && (h->step == 1 || p->hello)) {
        p->hello = true;
        p->hello_header = *h;
        return PS_OK;
    }
    // Pending payloads came through the agreed path, so it cannot change any more.
    if (p->joined && p->shm != (h->codec == PS_CODEC_SHM))
        return ps_err_set(PS_ERR_PROTOCOL, "a HELLO that differs from its first one");
    if (h->codec == PS_CODEC_SHM) {
        if (s->codec.codec != PS_CODEC_NONE)
            return ps_err_set(PS_ERR_PROTOCOL,
                              "a HELLO with shared memory, but the job has a codec");
        p->params = ps_shm_door_params(s->door, h->rank);
        p->grads = ps_shm_door_grads(s->door, h->rank);
        p->shm = p->params && p->grads;
        if (!p->shm)
            return ps_err_set(PS_ERR_PROTOCOL,
                              "a HELLO with shared memory that is not mapped here");
    }
    PS_TRY(take_rings(s, p, h));
    p->joined = true;
    p->dead = false;
    // Payloads of the connection before come again, or have been answered.
    p->owed = 0;
    return ps_shard_reply_short(s, PS_MSG_READY, h->rank, h->step);
}
