/* Stand-ins for the members: what joining.c, member.c and rejoin.c do with the
 * coordinator's messages, without their sockets and waits, and a program that does
 * little:
 *
 *   worker  GATHER; worker 0 PUTs a key that worker 1 GETs; LEAVE, BYE
 *   server  waits for END; LEAVE, BYE
 *
 * In an elastic job the workers' GATHER sums up whether one leaves, and how many others
 * wait to join, as worker 0 knows; then they regroup, or LEAVE. In a paced job worker 0
 * PUTs the policy, all push, and it PUTs where one that comes back begins; then they
 * LEAVE.
 *
 * What a process does by itself it does at once: nobody sees whether it is later.
 *
 * And for psrun: it starts a process that has died again, unless another has ended in
 * order; then it ends those that wait to join. */
#include <stdio.h>
#include <string.h>

#include "job_keys.h"
#include "joining_world.h"
#include "sync_codec.h"

static uint32_t number_of(const process *p)
{
    return (uint32_t)(p - W.processes);
}

static ps_role role_of(uint32_t m)
{
    return m < S.servers ? PS_ROLE_SERVER : PS_ROLE_WORKER;
}

static int rank_of(uint32_t m)
{
    return m < S.servers ? (int)m : (int)m - S.servers;
}

bool stand_in_lives(uint32_t m)
{
    return W.processes[m].phase < PHASE_AWAY;
}

static void close_link(process *p)
{
    if (p->link == NOBODY) return;
    W.links[p->link].open = W.links[p->link].cut = false;
    p->link = NOBODY;
    world_tidy();
}

static void process_begin(process *p, phase first, int start, int run)
{
    memset(p, 0, sizeof *p); // what lies between the fields, too
    p->phase = first;
    p->start = (uint8_t)start;
    p->run = (uint8_t)run;
    p->link = NOBODY;
    if (S.elastic) p->expected = (uint8_t)(S.workers - (S.comings > 0));
}

void stand_in_begin(void)
{
    for (uint32_t m = 0; m < world_members(); m++)
        process_begin(&W.processes[m], PHASE_OUT, 0, 0);
    if (S.comings > 0) W.processes[world_members() - 1].phase = PHASE_AWAY;
}

static void say(process *p, ps_control c)
{
    c.nonce = p->nonce;
    world_send(&W.links[p->link], world_frame(&c));
}

static void request(process *p, ps_control c)
{
    c.nonce = p->nonce;
    c.request = ++p->n_requests;
    c.timeout_ms = 60000;
    p->asked = true;
    p->request = world_frame(&c);
    world_send(&W.links[p->link], p->request);
}

/* ---- joining ---- */

static void say_join(process *p)
{
    uint8_t bytes[512];
    const uint32_t m = number_of(p);
    ps_mp_writer w;
    ps_roster_entry e = {.role = role_of(m), .rank = rank_of(m)};
    if (S.unranked && m > 0) e.rank = -1;
    snprintf(e.host, sizeof e.host, "%u.%u", m, p->start);
    char *endpoint = "tcp://127.0.0.1:3";
    if (S.paced && m < S.servers) { // its shard may speak, too
        e.endpoints = &endpoint;
        e.n_endpoints = 1;
    }
    ps_mp_writer_init_fixed(&w, bytes, sizeof bytes);
    ps_roster_entry_write(&w, &e);
    ps_mp_write_array(&w, 0);
    ps_control c = {.kind = PS_CONTROL_JOIN, .name = "job", .text = PS_VERSION};
    c.join.config_hash = c.join.plan_hash = 1;
    c.join.world_size = S.workers;
    c.join.servers = S.servers;
    c.join.incarnation = S.uncounted                           ? 0
                         : S.mistake == MISTAKE_OLD_START_WINS ? 9u - p->start
                                                               : p->start;
    c.value = bytes;
    c.bytes = w.used;
    world_send(&W.links[p->link], world_frame(&c));
}

static void start(process *p)
{
    const uint32_t m = number_of(p);
    const ps_control_id id = {
        {0xd0, (uint8_t)m, p->start, p->run}}; // any, but the same each time
    if (m == 0 && !W.coordinator) world_start_coordinator();
    close_link(p);
    p->link = world_connect(m, true, &id);
    p->phase = PHASE_DOOR;
    say_join(p);
}

/* Looks for the coordinator again. */
static void go_out(process *p)
{
    close_link(p);
    p->phase = PHASE_OUT;
}

static void on_admission(process *p, const ps_control *c)
{
    ps_control_id id;
    memcpy(p->secret.bytes, c->value, sizeof p->secret.bytes);
    p->nonce = c->nonce;
    ps_control_id_make(&id, &p->secret, 0);
    close_link(p);
    p->link = world_connect(number_of(p), false, &id);
    p->phase = PHASE_ADMITTED;
    say(p, (ps_control){.kind = PS_CONTROL_HERE});
}

/* ---- what all members have to agree on ---- */

static uint64_t hash_of_entries(const ps_roster *r)
{
    uint64_t h = 7;
    for (int i = 0; i < r->n_servers + r->n_workers; i++) {
        const ps_roster_entry *e =
            i < r->n_servers ? &r->servers[i] : &r->workers[i - r->n_servers];
        for (const char *c = e->host; *c; c++)
            h = (h ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
        h = (h ^ '/') * UINT64_C(0x100000001b3);
    }
    return h;
}

static void check_pair(const process *p, const process *q)
{
    const uint32_t a = number_of(p), b = number_of(q);
    const bool servers[] = {a < S.servers, b < S.servers};
    if (servers[0] == servers[1] && p->rank == q->rank)
        world_wrong("two processes are %s %d", ps_role_name(role_of(a)), p->rank);
    if (servers[0] == servers[1] && !S.unranked && (a < b) != (p->rank < q->rank))
        world_wrong("%u and %u have each other's ranks", a, b);
    if (p->roster != q->roster) world_wrong("%u and %u have different rosters", a, b);
    if (servers[0] && servers[1] && memcmp(p->secrets, q->secrets, sizeof p->secrets))
        world_wrong("the servers have different secrets");
    const process *server = servers[0] ? p : q, *worker = servers[0] ? q : p;
    if (servers[0] != servers[1] &&
        memcmp(&server->secrets[worker->rank], &worker->secret, sizeof worker->secret))
        world_wrong("a server has another secret of worker %d", worker->rank);
}

static void check_roster(const process *p, const ps_roster *r)
{
    char host[sizeof r->servers->host];
    const uint32_t m = number_of(p);
    const ps_roster_entry *mine =
        m < S.servers ? &r->servers[p->rank] : &r->workers[p->rank];
    snprintf(host, sizeof host, "%u.%u", m, p->start);
    if (strncmp(host, mine->host, p->is_back ? 2 : sizeof host) != 0)
        world_wrong("process %u is not where its roster says", m);
    const int asked = rank_of(m);
    const bool right =
        !S.elastic || asked == 0 ? p->rank == asked : 0 < p->rank && p->rank <= asked;
    if (!S.unranked && !right) world_wrong("process %u has rank %d", m, p->rank);
    if ((r->secrets != NULL) != (m < S.servers))
        world_wrong("secrets are not the servers'");
    for (uint32_t i = 0; i < world_members(); i++) {
        const process *q = &W.processes[i];
        if (q != p && q->phase == PHASE_RUNS && q->nonce == p->nonce) check_pair(p, q);
    }
}

/* ---- the program ---- */

static void leave(process *p)
{
    p->leaving = true;
    request(p, (ps_control){.kind = PS_CONTROL_LEAVE});
}

/* As in trainer.c. values: the sums that all have. */
static void regroup(process *p, const double *values)
{
    const int leaving = (int)values[0], newcomers = (int)values[1], now = p->expected;
    int next = now - leaving + newcomers;
    if (next > S.workers) next = S.workers;
    if (leaving == 0 && next <= now) return;
    p->expected = (uint8_t)next;
    p->regroups = true;
    if (p->rank != 0) return;
    ps_control c = {.kind = PS_CONTROL_ABORT};
    c.abort.code = PS_ERR_REGROUP;
    c.abort.next_workers = (uint64_t)next;
    say(p, c);
    p->phase = PHASE_ABORTED;
}

/* Of a paced job: a dead worker's place is taken, and the new process pushes at once. */
static size_t write_policy(uint8_t *out, size_t cap)
{
    const ps_sync_rules r = {.kind = PS_POLICY_BACKUP,
                             .n_workers = S.workers,
                             .backups = 1,
                             .add = true,
                             .come_back = true,
                             .number = 1,
                             .total = 100,
                             .stretch = 100};
    const uint64_t batches[WORKERS_MOST] = {1, 1, 1};
    ps_mp_writer w;
    ps_mp_writer_init_fixed(&w, out, cap);
    ps_sync_rules_write(&w, &r, 1, batches);
    return w.used;
}

static void go_on(process *p)
{
    uint8_t rules[512];
    const double values[] = {p->told, p->rank == 0 ? p->newcomers : 0};
    const bool puts = p->rank == 0 && !p->is_back, sets_policy = S.paced && p->step == 1;
    ps_control c = {.kind = puts ? PS_CONTROL_PUT : PS_CONTROL_GET};
    if (number_of(p) < S.servers) {
        if (p->ended && !p->leaving) leave(p);
        return;
    }
    if (p->step == 0) {
        c = (ps_control){.kind = PS_CONTROL_GATHER, .name = "begin", .value = values};
        c.bytes = S.elastic ? sizeof values : 0;
    } else {
        snprintf(c.name, sizeof c.name, "%s",
                 sets_policy    ? PS_JOB_KEY_POLICY
                 : p->step == 1 ? "job/total_steps"
                                : ps_job_key_reentry(0).text);
        c.value = rules;
        rules[0] = 's';
        c.bytes = !puts ? 0 : sets_policy ? write_policy(rules, sizeof rules) : 1;
    }
    if (S.paced && p->step == 2) return; // stand_in_push
    if (p->step == (S.elastic ? 1 : S.paced ? 4 : 2))
        leave(p);
    else
        request(p, c);
}

bool stand_in_can_push(uint32_t m)
{
    const process *p = &W.processes[m], *host = &W.processes[0];
    return S.paced && m >= S.servers && p->phase == PHASE_RUNS && p->step == 2 &&
           host->phase == PHASE_RUNS && host->nonce == p->nonce && W.coordinator;
}

void stand_in_push(uint32_t m)
{
    process *p = &W.processes[m];
    world_push(m, p->push++);
    p->step++;
    go_on(p);
}

/* The process ends; nobody needs its coordinator any more. */
static void done(process *p)
{
    if (p->link != NOBODY) say(p, (ps_control){.kind = PS_CONTROL_BYE});
    close_link(p);
    if (number_of(p) == 0) world_end_coordinator();
    p->phase = PHASE_DONE;
}

static void on_welcome(process *p, const ps_control *c)
{
    ps_roster r;
    if (ps_roster_read(&r, c->value, c->bytes) != PS_OK) {
        world_wrong("a malformed roster: %s", ps_err_message());
        return;
    }
    p->rank = (int8_t)c->welcome.rank;
    p->roster = hash_of_entries(&r);
    p->expected = S.elastic ? (uint8_t)r.n_workers : 0;
    p->served = S.elastic;
    p->is_back = c->welcome.push > 0;
    p->push = p->is_back ? (uint8_t)c->welcome.push : 1;
    if (p->is_back) p->step = 2;
    if (r.secrets)
        memcpy(p->secrets, r.secrets,
               (size_t)ps_roster_n_secrets(&r) * sizeof *p->secrets);
    check_roster(p, &r);
    ps_roster_fini(&r);
    p->phase = PHASE_RUNS;
    go_on(p);
}

static void on_answer(process *p, const ps_control *c)
{
    if (!p->asked || c->request != p->n_requests) return; // it was asked twice
    p->asked = false;
    p->step++;
    if (p->leaving)
        done(p);
    else if (S.elastic && c->bytes > 0)
        regroup(p, c->value);
    if (p->phase == PHASE_RUNS && !p->regroups) go_on(p);
}

static void on_abort(process *p, const ps_control *c)
{
    if (S.elastic && c->abort.code == PS_ERR_REGROUP)
        p->expected = (uint8_t)c->abort.next_workers;
    else if (!W.disturbed || c->abort.code != PS_ERR_PEER)
        world_wrong("process %u is told that the job was aborted", number_of(p));
    p->phase = PHASE_ABORTED;
}

static void on_running(process *p, const ps_control *c)
{
    if (c->kind == PS_CONTROL_ABORT) on_abort(p, c);
    if (c->kind == PS_CONTROL_DONE) on_answer(p, c);
    if (c->kind == PS_CONTROL_NEWCOMERS) p->newcomers = (uint8_t)c->newcomers;
    if (c->kind != PS_CONTROL_END) return;
    p->ended = true;
    if (number_of(p) < S.servers) go_on(p);
}

/* Of a job that has ended before it knew that it had begun. */
static void on_over(process *p, const ps_control *c)
{
    on_abort(p, c);
    if (S.alone) return;
    go_out(p);
    if (number_of(p) == 0) world_end_coordinator();
}

void stand_in_take(uint32_t m)
{
    static ps_control c;
    process *p = &W.processes[m];
    connection *l = &W.links[p->link];
    world_read_frame(l->down[0], &c);
    l->n_down--;
    memmove(l->down, l->down + 1, l->n_down * sizeof *l->down);
    l->down[l->n_down] = 0;
    if (c.kind == PS_CONTROL_FAIL || (c.kind == PS_CONTROL_REFUSE && !c.for_now))
        world_wrong("process %u gets %s", m, ps_control_kind_name((int)c.kind));
    else if (c.kind == PS_CONTROL_REFUSE)
        go_out(p);
    else if (p->phase == PHASE_DOOR && c.kind == PS_CONTROL_ADMIT)
        on_admission(p, &c);
    else if (p->phase == PHASE_ADMITTED && c.kind == PS_CONTROL_WELCOME)
        on_welcome(p, &c);
    else if (p->phase == PHASE_ADMITTED && c.kind == PS_CONTROL_ABORT)
        on_over(p, &c);
    else if (p->phase == PHASE_RUNS && c.nonce == p->nonce)
        on_running(p, &c);
}

void stand_in_lose(uint32_t m)
{
    connection *l = &W.links[W.processes[m].link];
    world_clear(l->down, &l->n_down);
}

/* ---- what deadlines do ---- */

/* Only where it may be answered: other heartbeats change nothing. */
bool stand_in_can_repeat(uint32_t m)
{
    const process *p = &W.processes[m];
    const connection *l = &W.links[p->link];
    if (p->link == NOBODY || !l->open || l->gone || l->n_up > 0 || l->n_down > 0)
        return false;
    const ps_coord_state state = W.coordinator->state;
    if (p->phase == PHASE_RUNS)
        return state == PS_COORD_ABORTED || (state == PS_COORD_ENDED && !p->ended &&
                                             (m >= S.servers || world_has_ended()));
    return p->phase == PHASE_DOOR || (p->phase == PHASE_ADMITTED &&
                                      (state != PS_COORD_JOINING || !world_is_here(l)));
}

void stand_in_repeat(uint32_t m)
{
    process *p = &W.processes[m];
    if (p->phase == PHASE_DOOR)
        say_join(p);
    else
        say(p, (ps_control){.kind = p->phase == PHASE_ADMITTED ? PS_CONTROL_HERE
                                                               : PS_CONTROL_HEARTBEAT});
}

bool stand_in_can_cut(uint32_t m)
{
    const process *p = &W.processes[m];
    return p->link != NOBODY && W.links[p->link].open && !W.links[p->link].gone;
}

void stand_in_cut(uint32_t m)
{
    connection *l = &W.links[W.processes[m].link];
    l->open = false;
    l->cut = true;
    W.cuts--;
}

/* Over the new connection a member says again what has no answer. */
void stand_in_reconnect(uint32_t m)
{
    process *p = &W.processes[m];
    const connection before = W.links[p->link];
    close_link(p);
    p->link = world_connect(m, before.at_door, &before.id);
    if (p->phase != PHASE_RUNS) return;
    if (p->asked && S.mistake != MISTAKE_NOTHING_IS_REPEATED)
        world_send(&W.links[p->link], p->request);
    say(p, (ps_control){.kind = PS_CONTROL_HEARTBEAT});
}

static void rejoin(process *p)
{
    close_link(p);
    if (number_of(p) == 0 && W.coordinator) world_end_coordinator();
    const process before = *p;
    process_begin(p, S.alone ? PHASE_FAILED : PHASE_OUT, p->start, p->run + 1);
    p->expected = before.expected;
    p->served = before.served;
    if (before.told) process_begin(p, PHASE_AWAY, p->start + 1, 0);
}

/* Its coordinator is gone. */
static void miss(process *p)
{
    if (p->phase != PHASE_RUNS) { // no answer
        go_out(p);
    } else if (p->leaving && (p->ended || S.alone)) {
        close_link(p);
        p->phase = PHASE_DONE;
    } else {
        p->phase = PHASE_ABORTED;
    }
}

static void settle(process *p)
{
    const connection *l = p->link == NOBODY ? NULL : &W.links[p->link];
    if (p->phase != PHASE_ABORTED && l && l->gone && l->n_down == 0) miss(p);
    if (p->phase == PHASE_ABORTED) rejoin(p);
    if (p->phase == PHASE_OUT && (W.coordinator || number_of(p) == 0)) start(p);
}

void stand_in_settle(void)
{
    for (uint32_t m = 0; m < world_members(); m++)
        settle(&W.processes[m]);
}

/* Its data connections have told it of a death. */
void stand_in_abort(uint32_t m)
{
    process *p = &W.processes[m];
    ps_control c = {.kind = PS_CONTROL_ABORT};
    c.abort.code = PS_ERR_PEER;
    say(p, c);
    p->phase = PHASE_ABORTED;
    W.aborts--;
}

static bool work_is_done(void)
{
    const uint32_t n = S.elastic ? S.servers + 1u : world_members(); // others may go
    for (uint32_t m = 0; m < n; m++)
        if (W.processes[m].phase == PHASE_DONE) return true;
    return false;
}

bool stand_in_can_go(uint32_t m)
{
    const process *p = &W.processes[m];
    return W.goings > 0 && m > S.servers && p->phase == PHASE_RUNS && !p->told;
}

void stand_in_go(uint32_t m)
{
    W.processes[m].told = true;
    W.goings--;
}

void stand_in_come(uint32_t m)
{
    W.processes[m].phase = PHASE_OUT;
    W.comings--;
}

void stand_in_die(uint32_t m)
{
    process *p = &W.processes[m];
    close_link(p);
    if (m == 0 && W.coordinator) world_kill_coordinator();
    const bool again = !S.alone && !work_is_done();
    const phase next = S.elastic && m > S.servers ? PHASE_AWAY
                       : again                    ? PHASE_OUT
                                                  : PHASE_DEAD;
    process_begin(p, next, p->start + 1, 0);
    W.deaths--;
    W.disturbed = true;
}

bool world_is_final(void)
{
    bool missing = work_is_done();
    for (uint32_t m = 0; m < world_members(); m++)
        missing |= S.alone && W.processes[m].phase == PHASE_DEAD;
    for (uint32_t m = 0; m < world_members(); m++) {
        const phase p = W.processes[m].phase;
        if (p < PHASE_AWAY && !((W.disturbed || S.elastic) && missing && p < PHASE_RUNS))
            return false;
    }
    return true;
}
