#include "coord_admission.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coord_back.h"
#include "coord_elastic.h"
#include "coord_end.h"
#include "fault_point.h"
#include "job_view.h"
#include "log.h"
#include "mem.h"
#include "tell.h"

/* As many as the job has, or waits for. */
static int role_size(const ps_coordinator *c, ps_role role)
{
    return role == PS_ROLE_SERVER ? c->o.n_servers : c->n_workers;
}

static int admission_count_here(const ps_coordinator *c, ps_role role)
{
    int n = 0;
    for (int i = 0; i < c->n_peers; i++)
        n += c->peers[i].entry.role == role && c->peers[i].here;
    return n;
}

/* Sets present[r] for the ranks given so far; returns how many members came without a
 * rank. */
static int mark_ranks(const ps_coordinator *c, ps_role role, bool *present)
{
    int unranked = 0;
    memset(present, 0, PS_MAX_RANKS * sizeof *present);
    for (int i = 0; i < c->n_peers; i++) {
        const ps_roster_entry *e = &c->peers[i].entry;
        if (e->role != role || !c->peers[i].here) continue;
        if (e->rank < 0)
            unranked++;
        else
            present[e->rank] = true;
    }
    return unranked;
}

/* When some are missing, appends "servers 1, 3 of 4" to out, or "2 of 4 servers" while
 * ranks are not known yet. */
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

/* Why a process cannot join: the text that it is told, and the detail that only the log
 * gets. It may be a stranger, so it is not told any name, size or hash of the job. */
typedef struct refusal {
    char told[PS_CONTROL_TEXT_MAX], detail[PS_CONTROL_TEXT_MAX];
    bool for_now; // it may ask again soon
} refusal;

static bool refuse_as(refusal *r, const char *told)
{
    snprintf(r->told, sizeof r->told, "%s", told);
    r->detail[0] = '\0';
    return false;
}

/* Where members join again, the place may soon be free: it is a dead process's, whose end
 * has not been noticed yet. */
static bool refuse_for_now(const ps_coordinator *c, refusal *r, const char *told)
{
    r->for_now = ps_coord_frees_places(c);
    return refuse_as(r, told);
}

/* The section of the configuration that differs first, or NULL where it is not known. */
static const char *differing_section(const ps_coordinator *c, const ps_config_sections *s)
{
    for (int i = 0; i < c->o.sections.n && c->o.sections.n == s->n; i++)
        if (c->o.sections.hashes[i] != s->hashes[i]) return c->o.sections.names[i];
    return NULL;
}

static bool check_hashes(const ps_coordinator *c, const ps_control *m,
                         const ps_config_sections *sections, refusal *r)
{
    if ((m->join.plan_hash == 0) !=
        (c->o.plan_hash == 0)) // 0: it has no model (open_job.h)
        return refuse_as(r, c->o.plan_hash == 0
                                ? "the job has no model (--config) for its servers: its "
                                  "workers are programs that use libpstrain"
                                : "it has no model (--config), but the job has one: "
                                  "start all processes with the same file, and servers "
                                  "for programs that use libpstrain without one");
    if (m->join.config_hash != c->o.config_hash) {
        const char *section = differing_section(c, sections);
        char where[64] = "";
        if (section) snprintf(where, sizeof where, " in the section \"%s\"", section);
        snprintf(r->told, sizeof r->told,
                 "its configuration differs from the job's%s: start all processes with "
                 "the same file and --set",
                 where);
        snprintf(r->detail, sizeof r->detail,
                 "configuration hash %016" PRIx64 ", the job's is %016" PRIx64,
                 m->join.config_hash, c->o.config_hash);
        return false;
    }
    if (m->join.plan_hash == c->o.plan_hash) return true;
    return refuse_as(r, "it cuts the model into other chunks than the job: start all "
                        "processes with the same file and --set, and give them the same "
                        "address of the coordinator");
}

static bool admission_check_job(const ps_coordinator *c, const ps_control *m,
                                const ps_config_sections *sections, refusal *r)
{
    if (strcmp(m->text, PS_VERSION) != 0) {
        refuse_as(r, "it is of another version than the job: install the same version on "
                     "every host");
        snprintf(r->detail, sizeof r->detail, "version %.60s", m->text);
        return false;
    }
    if (m->nonce != 0 && m->nonce != c->nonce)
        return refuse_as(r, "it belongs to another job");
    if (strcmp(m->name, c->job) != 0) {
        refuse_as(r, "its job has another name (job.name) than the one at this address: "
                     "give each job an address of its own");
        snprintf(r->detail, sizeof r->detail, "job \"%.200s\"", m->name);
        return false;
    }
    if (m->join.world_size != (uint64_t)c->o.n_workers ||
        m->join.servers != (uint64_t)c->o.n_servers) {
        refuse_as(r, "it expects other numbers of workers and servers than the job has: "
                     "start all processes for the same numbers");
        snprintf(r->detail, sizeof r->detail,
                 "%" PRIu64 " workers and %" PRIu64 " servers, the job has %d and %d",
                 m->join.world_size, m->join.servers, c->o.n_workers, c->o.n_servers);
        return false;
    }
    return check_hashes(c, m, sections, r);
}

static int admission_count_of(const ps_coordinator *c, ps_role role)
{
    int n = 0;
    for (int i = 0; i < c->n_peers; i++)
        n += c->peers[i].entry.role == role;
    return n;
}

static ps_coord_peer *find_rank(const ps_coordinator *c, const ps_roster_entry *e)
{
    for (int i = 0; i < c->n_peers && e->rank >= 0; i++) {
        const ps_coord_peer *o = &c->peers[i];
        const int rank = ps_coord_is_named(c, e->role) ? o->asked_rank : o->entry.rank;
        if (o->entry.role == e->role && rank == e->rank) return &c->peers[i];
    }
    return NULL;
}

/* Whether the last place of the role is for the coordinator's own process, which alone
 * can begin the job anew, and asks for rank 0. */
static bool is_for_host(const ps_coordinator *c, const ps_roster_entry *e)
{
    const ps_role role = c->o.n_servers > 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER;
    if (e->role != role || e->rank == 0 || ps_coord_is_named(c, role)) return false;
    for (int i = 0; i < c->n_peers; i++)
        if (c->peers[i].entry.role == role && c->peers[i].asked_rank == 0) return false;
    return true;
}

static bool check_place(const ps_coordinator *c, const ps_roster_entry *e, refusal *r)
{
    const char *word = ps_role_name(e->role);
    const int n = e->role == PS_ROLE_SERVER ? c->o.n_servers : c->o.n_workers;
    if (e->rank >= n && !ps_coord_is_named(c, e->role))
        return refuse_as(r, "the job has no such rank");
    const ps_coord_peer *holder = find_rank(c, e);
    if (holder) {
        refuse_for_now(c, r,
                       "its rank is taken: give each process a rank of its own, or none");
        snprintf(r->detail, sizeof r->detail, "by a %s on host %s", word,
                 holder->entry.host);
        return false;
    }
    const int here = admission_count_of(c, e->role);
    char told[64];
    if (here == n - 1 && is_for_host(c, e)) {
        snprintf(told, sizeof told, "the last place is for %s 0", word);
        return refuse_for_now(c, r, told);
    }
    if (e->role == PS_ROLE_WORKER && here == n - 1 && ps_coord_keeps_place(c, e->rank))
        return refuse_for_now(c, r, "the last place is for worker 0");
    if (here < n) return true;
    snprintf(told, sizeof told, "all %ss of the job have joined already", word);
    return refuse_for_now(c, r, told);
}

/* The launcher that started the process again knows that the earlier one is dead. It may
 * know this before the coordinator does. */
static void drop_predecessor(ps_coordinator *c, const ps_roster_entry *e,
                             uint64_t incarnation)
{
    char who[128], reason[PS_CONTROL_TEXT_MAX];
    ps_coord_peer *holder = find_rank(c, e);
    if (!c->o.recovers || !holder || holder->incarnation >= incarnation) return;
    ps_coord_describe(holder, who, sizeof who);
    snprintf(reason, sizeof reason, "%s is dead: it was started again", who);
    if (holder->away || ps_coord_lose(c, holder, "it was started again")) return;
    if (c->state == PS_COORD_RUNNING && !holder->gone) {
        holder->gone = true;
        ps_coord_abort(c, PS_ERR_PEER, reason);
    } else if (c->state == PS_COORD_JOINING) {
        ps_coord_drop_peer(c, holder, reason);
    }
}

/* A worker that lies about its role would be told the other workers' secrets. */
static bool check_key(const ps_coordinator *c, const ps_role *proven,
                      const ps_roster_entry *e, refusal *r)
{
    if (!c->o.curve || !c->o.curve->on || (proven && *proven == e->role)) return true;
    return refuse_as(r, "its key is not that of its role: start servers with server.key "
                        "and workers with worker.key");
}

static bool check_join(ps_coordinator *c, const ps_control_id *from, const ps_control *m,
                       const ps_roster_entry *e, refusal *r)
{
    const ps_coord_peer *holder = find_rank(c, e);
    if (c->state == PS_COORD_ABORTED) return refuse_for_now(c, r, "the job was aborted");
    // It was replaced, and never gets in.
    if (holder && holder->incarnation > m->join.incarnation)
        return refuse_as(r, "its rank belongs to a later start of this process");
    if (holder && holder->away) return true;
    if (c->state == PS_COORD_RUNNING && ps_coord_is_named(c, e->role) && !holder) {
        ps_coord_note_newcomer(c, from, e->host);
        return refuse_for_now(c, r,
                              c->n_workers < c->o.n_workers
                                  ? "the workers have not regrouped yet"
                                  : "the job has as many workers as job.workers allows");
    }
    if (c->state != PS_COORD_JOINING)
        return refuse_for_now(c, r, "the job is running and has all its members");
    return check_place(c, e, r);
}

/* Whether p is given a rank before q. */
static bool is_before(const ps_coord_peer *p, const ps_coord_peer *q)
{
    if (p->asked_rank < 0 && q->asked_rank < 0) return p->asked_rank > q->asked_rank;
    return p->asked_rank >= 0 && (q->asked_rank < 0 || p->asked_rank < q->asked_rank);
}

/* The member without a rank whose turn it is, or NULL. */
static ps_coord_peer *next_unranked(const ps_coordinator *c, ps_role role)
{
    ps_coord_peer *found = NULL;
    for (int i = 0; i < c->n_peers; i++) {
        ps_coord_peer *p = &c->peers[i];
        if (p->entry.role != role || p->entry.rank >= 0) continue;
        if (!found || is_before(p, found)) found = p;
    }
    return found;
}

/* Gives ranks to the members that have none: by the ranks that they were started with,
 * then in the order of arrival. */
static void give_ranks(ps_coordinator *c, ps_role role)
{
    bool present[PS_MAX_RANKS];
    mark_ranks(c, role, present);
    int next = 0;
    for (ps_coord_peer *p; (p = next_unranked(c, role));) {
        while (present[next])
            next++;
        p->entry.rank = next++;
    }
}

/* The roster's bytes for a role. The peers keep their entries. */
static ps_err write_roster(const ps_coordinator *c, bool with_secrets, ps_mp_writer *w)
{
    ps_roster r;
    ps_secret *secrets = NULL;
    ps_err err = ps_roster_init(&r, c->o.n_servers, c->n_workers);
    if (err == PS_OK) err = PS_NEW(&secrets, (size_t)ps_roster_n_secrets(&r), "roster");
    if (err == PS_OK) {
        r.secrets = secrets;
        *ps_roster_readers(&r) = c->readers;
        *ps_roster_twins(&r) = c->twins;
        for (int i = 0; i < c->n_peers; i++) {
            const ps_roster_entry *e = &c->peers[i].entry;
            if (e->role == PS_ROLE_WORKER) secrets[e->rank] = c->peers[i].secret;
            *(e->role == PS_ROLE_SERVER ? &r.servers[e->rank] : &r.workers[e->rank]) = *e;
        }
        if (!with_secrets) r.secrets = NULL;
        ps_roster_write(w, &r);
        err = ps_mp_writer_end(w);
    }
    free(r.servers);
    free(r.workers);
    free(secrets);
    return err;
}

/* Sends WELCOME with rank and roster to p, or to all members of the role when p is NULL.
 */
static void admission_welcome(ps_coordinator *c, ps_role role, const ps_coord_peer *only)
{
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    if (write_roster(c, role == PS_ROLE_SERVER, &w) == PS_OK) {
        for (int i = 0; i < c->n_peers; i++) {
            ps_coord_peer *p = &c->peers[i];
            if ((only && p != only) || p->entry.role != role) continue;
            ps_control m = {.kind = PS_CONTROL_WELCOME, .value = w.base, .bytes = w.used};
            const ps_coord_orders_reentry reentry =
                p->is_back ? ps_coord_orders_reentry_of(ps_coord_board_orders(c->board),
                                                        p->entry.rank)
                           : (ps_coord_orders_reentry){0};
            m.welcome.epoch = c->epoch;
            m.welcome.rank = (uint64_t)p->entry.rank;
            m.welcome.push = reentry.push;
            m.welcome.stretch = reentry.stretch;
            m.welcome.made = reentry.made;
            m.welcome.fragment = reentry.fragment;
            ps_coord_send(c, p, &m);
        }
    } else {
        ps_coord_abort(c, PS_ERR_NOMEM, "the coordinator has no memory for the roster");
    }
    ps_mp_writer_fini(&w);
}

void ps_coord_send_wait(ps_coordinator *c, ps_coord_peer *only)
{
    char text[PS_CONTROL_TEXT_MAX];
    ps_control m = {.kind = PS_CONTROL_WAIT};
    missing_text(c, text, sizeof text);
    ps_control_set_text(&m, text);
    for (int i = 0; i < c->n_peers; i++) {
        ps_coord_peer *p = &c->peers[i];
        if (p == only || (!only && p->here)) ps_coord_send(c, p, &m);
    }
}

/* Answers a process that was admitted, also when it asks again. */
static void send_admission(ps_coordinator *c, const ps_coord_peer *p)
{
    ps_control m = {.kind = PS_CONTROL_ADMIT,
                    .nonce = c->nonce,
                    .value = p->secret.bytes,
                    .bytes = sizeof p->secret.bytes};
    m.port = (uint64_t)c->members_port;
    ps_coord_send_at_door(c, p->door_id.bytes, sizeof p->door_id.bytes, &m);
}

/* Takes the entry on PS_OK. */
static ps_err admit_new(ps_coordinator *c, const ps_control_id *from,
                        const ps_roster_entry *e, uint64_t incarnation)
{
    ps_coord_peer *p = &c->peers[c->n_peers];
    *p = (ps_coord_peer){.door_id = *from,
                         .entry = *e,
                         .asked_rank = e->rank,
                         .incarnation = incarnation,
                         .heard_ns = ps_clock_awake_ns(),
                         .fd = -1};
    if (ps_coord_is_named(c, e->role)) p->entry.rank = -1;
    PS_TRY(ps_secret_draw(&p->secret));
    ps_control_id_make(&p->id, &p->secret, 0);
    c->n_peers++;
    ps_coord_index_renew(c);
    send_admission(c, p);
    return PS_OK;
}

/* Takes the entry on PS_OK. One that comes back keeps the dead one's: others have it. */
static ps_err admission_admit(ps_coordinator *c, const ps_control_id *from,
                              ps_roster_entry *e, uint64_t incarnation)
{
    ps_coord_peer *holder = find_rank(c, e);
    if (!holder || !holder->away) return admit_new(c, from, e, incarnation);
    ps_roster_entry_fini(e);
    ps_coord_take_back(holder, from, incarnation);
    send_admission(c, holder);
    return PS_OK;
}

static void show_job(const ps_coordinator *c)
{
    ps_job_view_begin(c->o.view);
    for (int i = 0; i < c->n_peers; i++) {
        const ps_roster_entry *e = &c->peers[i].entry;
        ps_job_view_add(c->o.view, e->role, e->rank, e->host);
    }
    ps_job_view_set_state(c->o.view, PS_VIEW_RUNNING, "");
}

static void start_job(ps_coordinator *c)
{
    c->n_workers = admission_count_here(c, PS_ROLE_WORKER);
    c->waiting_ns = 0;
    ps_coord_board_set_workers(c->board, c->n_workers);
    give_ranks(c, PS_ROLE_SERVER);
    give_ranks(c, PS_ROLE_WORKER);
    c->state = PS_COORD_RUNNING;
    c->epoch = 1;
    show_job(c);
    admission_welcome(c, PS_ROLE_SERVER, NULL);
    PS_FAULT_POINT("servers.welcomed");
    admission_welcome(c, PS_ROLE_WORKER, NULL);
    PS_FAULT_POINT("job.begun");
}

/* Whether the job has all members that it needs. */
static bool is_ready(ps_coordinator *c)
{
    return ps_coord_members_suffice(
        c, admission_count_here(c, PS_ROLE_SERVER) == c->o.n_servers,
        admission_count_here(c, PS_ROLE_WORKER), admission_count_of(c, PS_ROLE_WORKER));
}

void ps_coord_start_if_ready(ps_coordinator *c)
{
    if (c->state == PS_COORD_JOINING && is_ready(c)) start_job(c);
}

void ps_coord_on_here(ps_coordinator *c, ps_coord_peer *p)
{
    const ps_roster_entry *e = &p->entry;
    if (c->state != PS_COORD_JOINING) {
        if (!p->here) PS_INFO("back", "role=%s rank=%d", ps_role_name(e->role), e->rank);
        p->here = true;
        admission_welcome(c, e->role, p);
        return;
    }
    int n = 0, all = c->o.n_servers + c->n_workers;
    bool first = !p->here;
    p->here = true;
    for (int i = 0; i < c->n_peers; i++)
        n += c->peers[i].here;
    if (first && c->o.expected_workers == 0) c->waiting_ns = 0; // waits for more again
    if (first) {
        const char *role = ps_role_name(e->role);
        ps_tell("joined", "{s:s, s:i, s:i, s:i}", "role", role, "rank", p->asked_rank,
                "here", n, "of", all);
        PS_INFO("joined", "role=%s rank=%d members=%d/%d host=%s", role, p->asked_rank, n,
                all, e->host);
    }
    if (is_ready(c))
        start_job(c);
    else
        ps_coord_send_wait(c, p);
    PS_FAULT_POINT("member.here");
}

static void admission_refuse(ps_coordinator *c, const ps_control_id *from,
                             const ps_roster_entry *e, const refusal *r)
{
    ps_control m = {.kind = PS_CONTROL_REFUSE};
    m.for_now = r->for_now;
    ps_control_set_text(&m, r->told);
    if (!r->for_now)
        PS_WARN_FEW("refused", "role=%s rank=%d host=%s reason=\"%s\" detail=\"%s\"",
                    ps_role_name(e->role), e->rank, e->host, r->told, r->detail);
    ps_coord_send_at_door(c, from->bytes, sizeof from->bytes, &m);
}

/* Reads what a JOIN carries. The caller must fini the entry in every case. */
static ps_err read_join(const ps_control *m, ps_roster_entry *e, ps_config_sections *s)
{
    ps_mp_reader r;
    ps_mp_reader_init(&r, m->value, m->bytes);
    PS_TRY(ps_roster_entry_read(&r, e));
    *s = (ps_config_sections){.n = (int)ps_mp_read_array(&r, PS_CONFIG_SECTIONS_MAX)};
    for (int i = 0; i < s->n; i++)
        s->hashes[i] = ps_mp_read_uint(&r, UINT64_MAX);
    if (ps_mp_reader_end(&r)) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "a malformed JOIN message");
}

void ps_coord_on_join(ps_coordinator *c, const ps_control_id *from, const ps_role *proven,
                      const ps_control *m)
{
    for (int i = 0; i < c->n_peers; i++)
        if (memcmp(c->peers[i].door_id.bytes, from->bytes, sizeof from->bytes) == 0) {
            send_admission(c, &c->peers[i]);
            return;
        }
    ps_roster_entry e;
    ps_config_sections sections;
    refusal r = {.for_now = false};
    const uint64_t incarnation = m->join.incarnation;
    ps_err err = read_join(m, &e, &sections);
    const bool belongs = err == PS_OK && check_key(c, proven, &e, &r) &&
                         admission_check_job(c, m, &sections, &r);
    if (belongs) drop_predecessor(c, &e, incarnation);
    if (err != PS_OK)
        ps_coord_drop_stranger(ps_err_message());
    else if (!belongs || !check_join(c, from, m, &e, &r))
        admission_refuse(c, from, &e, &r);
    else if (admission_admit(c, from, &e, incarnation) == PS_OK)
        return; // the entry is the peer's now
    ps_roster_entry_fini(&e);
}

void ps_coord_drop_peer(ps_coordinator *c, ps_coord_peer *p, const char *why)
{
    const char *role = ps_role_name(p->entry.role);
    ps_tell("unjoined", "{s:s, s:i}", "role", role, "rank", p->asked_rank);
    PS_WARN("unjoined", "role=%s rank=%d host=%s reason=\"%s\"", role, p->entry.rank,
            p->entry.host, why);
    ps_roster_entry_fini(&p->entry);
    *p = c->peers[--c->n_peers];
    ps_coord_index_renew(c);
}
