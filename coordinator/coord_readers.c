#include "coord_readers.h"

#include <string.h>

/* Why the reader is refused; NULL: it is not. for_now: it may ask again. */
static const char *readers_check(const ps_coordinator *c, const ps_control *m,
                                 bool *for_now)
{
    const ps_curve *keys = c->o.curve;
    *for_now = false;
    if (keys && !keys->on && keys->insecure)
        return "the job runs with --insecure: to let readers of its rows in, give it "
               "keys (psrun --curve DIR)";
    if (m->name[0] && strcmp(m->name, c->job) != 0)
        return "another job runs here: job.name differs";
    if (c->o.n_servers == 0) return "the job has no servers, so no embedding tables";
    if (c->state == PS_COORD_ENDED) return "the job has ended";
    if (c->state == PS_COORD_RUNNING) return NULL;
    *for_now = true;
    return c->state == PS_COORD_ABORTED ? "the job was aborted"
                                        : "the job has not all its members yet";
}

static void readers_write(const ps_coordinator *c, ps_mp_writer *w)
{
    size_t n = 0;
    for (int i = 0; i < c->n_peers; i++)
        if (c->peers[i].entry.role == PS_ROLE_SERVER)
            n += (size_t)c->peers[i].entry.n_endpoints;
    ps_mp_write_array(w, 1 + n);
    ps_mp_write_bin(w, c->readers.bytes, sizeof c->readers.bytes);
    for (int rank = 0; rank < c->o.n_servers; rank++)
        for (int i = 0; i < c->n_peers; i++) {
            const ps_roster_entry *e = &c->peers[i].entry;
            if (e->role != PS_ROLE_SERVER || e->rank != rank) continue;
            for (int k = 0; k < e->n_endpoints; k++)
                ps_mp_write_str(w, e->endpoints[k]);
        }
}

static void readers_let_in(ps_coordinator *c, const void *id, size_t id_bytes)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    readers_write(c, &w);
    const ps_control m = {
        .kind = PS_CONTROL_SERVERS, .nonce = c->nonce, .value = w.base, .bytes = w.used};
    if (ps_mp_writer_end(&w) == PS_OK) ps_coord_send_at_door(c, id, id_bytes, &m);
    ps_mp_writer_fini(&w); // without memory there is no answer, and it asks again
}

void ps_coord_on_reader(ps_coordinator *c, const void *id, size_t id_bytes,
                        const ps_control *m)
{
    bool for_now;
    const char *why = readers_check(c, m, &for_now);
    if (!why) {
        readers_let_in(c, id, id_bytes);
        return;
    }
    ps_control no = {.kind = PS_CONTROL_REFUSE};
    no.for_now = for_now;
    ps_control_set_text(&no, why);
    ps_coord_send_at_door(c, id, id_bytes, &no);
}
