#include "coord_admission.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coord_end.h"
#include "log.h"

static int role_size(const ps_coordinator *c, ps_role role)
{
    return role == PS_ROLE_SERVER ? c->o.n_servers : c->o.n_workers;
}

/* present[r] for the ranks given so far; returns how many came without a rank. */
static int mark_ranks(const ps_coordinator *c, ps_role role, bool *present)
{
    int unranked = 0;
    memset(present, 0, PS_MAX_RANKS * sizeof *present);
    for (int i = 0; i < c->n_peers; i++) {
        const ps_roster_entry *e = &c->peers[i].entry;
        if (e->role != role) continue;
        if (e->rank < 0)
            unranked++;
        else
            present[e->rank] = true;
    }
    return unranked;
}

/* Appends "servers 1, 3 of 4", or "2 of 4 servers" where ranks are not known yet, to out
 * when some are missing. */
static void add_missing(const ps_coordinator *c, ps_role role, char *out, size_t cap)
{
    bool present[PS_MAX_RANKS];
    int n = role_size(c, role), missing = n - mark_ranks(c, role, present);
    int unranked = n - missing;
    for (int r = 0; r < n; r++)
        missing -= present[r];
    if (missing <= 0) return;
    size_t used = strlen(out);
    const char *comma = used ? ", " : "", *word = ps_role_name(role);
    if (unranked > 0) {
        snprintf(out + used, cap - used, "%s%d of %d %ss", comma, missing, n, word);
        return;
    }
    char ranks[256];
    ps_roster_missing_ranks(present, n, ranks, sizeof ranks);
    snprintf(out + used, cap - used, "%s%s%s %s of %d", comma, word,
             missing > 1 ? "s" : "", ranks, n);
}

static void missing_text(const ps_coordinator *c, char *out, size_t cap)
{
    out[0] = '\0';
    add_missing(c, PS_ROLE_SERVER, out, cap);
    add_missing(c, PS_ROLE_WORKER, out, cap);
}

static ps_err check_hashes(const ps_coordinator *c, const ps_control *m)
{
    static const char *const what[] = {"configuration", "plan"};
    const uint64_t ours[] = {c->o.config_hash, c->o.plan_hash};
    for (int i = 0; i < 2; i++)
        if (m->number[i] != ours[i])
            return ps_err_set(PS_ERR_PEER,
                              "it has %s hash %016" PRIx64 ", the job's is %016" PRIx64
                              ": start all processes with the same file and --set",
                              what[i], m->number[i], ours[i]);
    return PS_OK;
}

static ps_err check_job(const ps_coordinator *c, const ps_control *m)
{
    if (strcmp(m->text, PS_VERSION) != 0)
        return ps_err_set(
            PS_ERR_PEER,
            "it is version %s, the job's is %s: install the same version on "
            "every host",
            m->text, PS_VERSION);
    if (m->nonce != 0 && m->nonce != c->nonce)
        return ps_err_set(PS_ERR_PEER, "it belongs to another job");
    if (strcmp(m->name, c->job) != 0)
        return ps_err_set(
            PS_ERR_PEER,
            "it belongs to job \"%s\", this is job \"%s\": give each job an "
            "address of its own",
            m->name, c->job);
    if (m->number[2] != (uint64_t)c->o.n_workers ||
        m->number[3] != (uint64_t)c->o.n_servers)
        return ps_err_set(PS_ERR_PEER,
                          "it expects %" PRIu64 " workers and %" PRIu64
                          " servers, the job has %d and %d",
                          m->number[2], m->number[3], c->o.n_workers, c->o.n_servers);
    return check_hashes(c, m);
}

static ps_err check_place(const ps_coordinator *c, const ps_roster_entry *e)
{
    const char *word = ps_role_name(e->role);
    int n = role_size(c, e->role), present = 0;
    if (e->rank >= n)
        return ps_err_set(PS_ERR_PEER, "its rank is not within 0 .. %d", n - 1);
    for (int i = 0; i < c->n_peers; i++) {
        const ps_roster_entry *o = &c->peers[i].entry;
        if (o->role != e->role) continue;
        present++;
        if (e->rank >= 0 && o->rank == e->rank)
            return ps_err_set(PS_ERR_PEER,
                              "its rank is taken by a %s on host %s: give each %s a rank "
                              "of its own, or none",
                              word, o->host, word);
    }
    if (present >= n)
        return ps_err_set(PS_ERR_PEER, "the job's %d %ss have joined already", n, word);
    return PS_OK;
}

static ps_err check_join(const ps_coordinator *c, const ps_control *m,
                         const ps_roster_entry *e)
{
    PS_TRY(check_job(c, m));
    if (c->state == PS_COORD_ABORTED)
        return ps_err_set(PS_ERR_PEER, "the job was aborted: %s", c->reason);
    if (c->state != PS_COORD_JOINING)
        return ps_err_set(PS_ERR_PEER, "the job is running and has all its members");
    return check_place(c, e);
}

/* Ranks for those that came without, in the order of arrival. */
static void give_ranks(ps_coordinator *c, ps_role role)
{
    bool present[PS_MAX_RANKS];
    mark_ranks(c, role, present);
    int next = 0;
    for (int i = 0; i < c->n_peers; i++) {
        ps_roster_entry *e = &c->peers[i].entry;
        if (e->role != role || e->rank >= 0) continue;
        while (present[next])
            next++;
        e->rank = next++;
    }
}

/* The roster's bytes; entries stay the peers'. */
static ps_err write_roster(const ps_coordinator *c, ps_mp_writer *w)
{
    ps_roster r;
    ps_err err = ps_roster_init(&r, c->o.n_servers, c->o.n_workers);
    if (err == PS_OK) {
        for (int i = 0; i < c->n_peers; i++) {
            const ps_roster_entry *e = &c->peers[i].entry;
            *(e->role == PS_ROLE_SERVER ? &r.servers[e->rank] : &r.workers[e->rank]) = *e;
        }
        ps_roster_write(w, &r);
        err = ps_mp_writer_end(w);
    }
    free(r.servers);
    free(r.workers);
    return err;
}

/* Tells p, or everybody when it is NULL, who they are and who the others are. */
static void welcome(ps_coordinator *c, const ps_coord_peer *only)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    if (write_roster(c, &w) == PS_OK) {
        for (int i = 0; i < c->n_peers; i++) {
            const ps_coord_peer *p = &c->peers[i];
            if (only && p != only) continue;
            ps_control m = {.kind = PS_CONTROL_WELCOME, .value = w.base, .bytes = w.used};
            m.number[0] = c->epoch;
            m.number[1] = (uint64_t)p->entry.rank;
            ps_coord_send(c, p, &m);
        }
    } else {
        ps_coord_abort(c, "the coordinator has no memory for the roster");
    }
    ps_mp_writer_fini(&w);
}

void ps_coord_send_wait(ps_coordinator *c, const ps_coord_peer *p)
{
    char text[PS_CONTROL_TEXT_MAX];
    missing_text(c, text, sizeof text);
    ps_coord_send_text(c, p, PS_CONTROL_WAIT, text);
}

static void admit(ps_coordinator *c, const ps_coord_sender *from,
                  const ps_roster_entry *e)
{
    ps_coord_peer *p = &c->peers[c->n_peers++];
    *p = (ps_coord_peer){.entry = *e, .heard_ns = ps_clock_awake_ns(), .fd = from->fd};
    memcpy(p->id.bytes, from->id, sizeof p->id.bytes);
    PS_INFO("joined", "role=%s rank=%d host=%s members=%d/%d", ps_role_name(e->role),
            e->rank, e->host, c->n_peers, c->o.n_servers + c->o.n_workers);
    if (c->n_peers < c->o.n_servers + c->o.n_workers) {
        ps_coord_send_wait(c, p);
        return;
    }
    give_ranks(c, PS_ROLE_SERVER);
    give_ranks(c, PS_ROLE_WORKER);
    c->state = PS_COORD_RUNNING;
    c->epoch = 1;
    welcome(c, NULL);
}

static void refuse(ps_coordinator *c, const ps_coord_sender *from,
                   const ps_roster_entry *e)
{
    ps_control m = {.kind = PS_CONTROL_REFUSE};
    char rank[16] = "";
    if (e->rank >= 0) snprintf(rank, sizeof rank, " %d", e->rank);
    snprintf(m.text, sizeof m.text, "%s%s on host %s cannot join: %.600s",
             ps_role_name(e->role), rank, e->host, ps_err_message());
    PS_WARN_FEW("refused", "reason=\"%s\"", m.text);
    ps_coord_send_raw(c, from->id, from->bytes, &m);
}

void ps_coord_on_join(ps_coordinator *c, const ps_coord_sender *from, const ps_control *m)
{
    if (from->member) {
        if (c->state == PS_COORD_JOINING)
            ps_coord_send_wait(c, from->member);
        else if (c->state == PS_COORD_ABORTED)
            ps_coord_send_text(c, from->member, PS_CONTROL_ABORT, c->reason);
        else
            welcome(c, from->member);
        return;
    }
    ps_roster_entry e;
    ps_mp_reader r;
    ps_mp_reader_init(&r, m->value, m->bytes);
    ps_err err = ps_roster_entry_read(&r, &e);
    if (err == PS_OK && (!ps_mp_reader_end(&r) || from->bytes != PS_CONTROL_ID_BYTES))
        err = ps_err_set(PS_ERR_PROTOCOL, "a malformed JOIN message");
    if (err != PS_OK) {
        ps_coord_complain(c, from, m->request, err);
    } else if (check_join(c, m, &e) != PS_OK) {
        refuse(c, from, &e);
    } else {
        admit(c, from, &e);
        return; // the entry is the peer's now
    }
    ps_roster_entry_fini(&e);
}

void ps_coord_drop_peer(ps_coordinator *c, ps_coord_peer *p, const char *why)
{
    PS_WARN("unjoined", "role=%s rank=%d host=%s reason=\"%s\"",
            ps_role_name(p->entry.role), p->entry.rank, p->entry.host, why);
    ps_roster_entry_fini(&p->entry);
    *p = c->peers[--c->n_peers];
}
