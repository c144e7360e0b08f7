#include "joining_world.h"

#include <stdlib.h>
#include <string.h>

enum { HEARTBEAT_MS = 1000, DEAD_AFTER_MS = 60000 };

world W;
scenario S;
char world_fault_text[TEXT];
static uint64_t n_versions;

/* ---- the coordinator ---- */

static uint64_t mix(uint64_t h, const void *bytes, size_t n)
{
    enum { LANES = 4 };
    const uint64_t *words = bytes, factor = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t sums[LANES] = {h, ~h, h + 1, h ^ factor};
    size_t i = 0;
    for (; i + LANES <= n / sizeof *words; i += LANES)
        for (int k = 0; k < LANES; k++) {
            const uint64_t x = (sums[k] ^ words[i + k]) * factor;
            sums[k] = x ^ x >> 29;
        }
    for (i *= sizeof *words; i < n; i++)
        sums[0] = (sums[0] ^ ((const uint8_t *)bytes)[i]) * factor;
    for (int k = 0; k < LANES; k++) {
        h = (h ^ sums[k]) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    return h;
}

static bool is_before(const ps_coord_peer *p, const ps_coord_peer *q)
{
    return p->entry.role != q->entry.role ? p->entry.role < q->entry.role
                                          : p->asked_rank < q->asked_rank;
}

/* Members with ranks of their own, or of other roles, may come in any order: it makes no
 * difference. */
static void sort_peers(ps_coordinator *c)
{
    for (int i = 1; i < c->n_peers; i++)
        for (int k = i; k > 0 && is_before(&c->peers[k], &c->peers[k - 1]); k--) {
            const ps_coord_peer p = c->peers[k];
            c->peers[k] = c->peers[k - 1];
            c->peers[k - 1] = p;
        }
    ps_coord_index_renew(c);
}

static int address_order(const void *a, const void *b)
{
    const uint8_t *const *p = a, *const *q = b;
    return (*p > *q) - (*p < *q);
}

/* Times, counters and texts do not belong to the state. */
static void canonicalize(ps_coordinator *c)
{
    for (int i = 0; i < c->n_peers; i++) {
        ps_coord_peer *p = &c->peers[i];
        p->heard_ns = WORLD_NOW;
        if (p->lost_ns) p->lost_ns = WORLD_NOW;
        p->queued_bytes = 0;
    }
    for (int i = 0; c->state == PS_COORD_ABORTED && i < c->n_peers; i++) {
        ps_coord_peer *p = &c->peers[i]; // nothing but its secret matters now
        ps_coord_board_forget(c->board, &p->secret);
        p->gone = true;
        p->left = p->leaving = false;
        p->leave_request = p->lost_ns = 0;
        p->fd = -1;
    }
    c->next_look_ns = 0;
    memset(c->reason, 0, sizeof c->reason);
    memset(c->peers + c->n_peers, 0,
           (world_members() - (size_t)c->n_peers) * sizeof *c->peers);
    sort_peers(c);
    if (S.paced) return;
    char **none[MEMBERS]; // their endpoints, each an array of nothing
    for (int i = 0; i < c->n_peers; i++)
        none[i] = c->peers[i].entry.endpoints;
    qsort(none, (size_t)c->n_peers, sizeof *none, address_order);
    for (int i = 0; i < c->n_peers; i++)
        c->peers[i].entry.endpoints = none[i];
}

static void memory_look(void)
{
    static const uint8_t nothing[PAGE];
    uint64_t h = mix(W.n_blocks, W.blocks, sizeof W.blocks);
    W.version = ++n_versions;
    W.pages = 0;
    for (uint32_t i = 0; i * PAGE < W.used; i++) {
        const uint8_t *page = W.memory + i * PAGE;
        if (memcmp(page, nothing, PAGE) == 0) continue;
        W.pages |= UINT64_C(1) << i;
        h = mix(h + i, page, PAGE);
    }
    W.memory_hash = h;
}

static void check_coordinator(void)
{
    const ps_coordinator *c = W.coordinator;
    if (c->n_peers > MEMBERS) world_wrong("%d members", c->n_peers);
    if (c->state != PS_COORD_RUNNING) return;
    for (int i = 0; i < c->n_peers; i++)
        for (int k = 0; k < i; k++)
            if (c->peers[i].entry.role == c->peers[k].entry.role &&
                c->peers[i].entry.rank == c->peers[k].entry.rank)
                world_wrong("two members are %s %d", ps_role_name(c->peers[i].entry.role),
                            c->peers[i].entry.rank);
}

/* What structs have between their fields comes from the stack; it is no difference. */
static void clear_stack(void)
{
    volatile uint8_t stack[12 << 10];
    for (size_t i = 0; i < sizeof stack; i += sizeof(uint64_t))
        *(volatile uint64_t *)(stack + i) = 0;
}

static void turn(void)
{
    clear_stack();
    world_in_coordinator = true;
    ps_coord_turn(W.coordinator);
    canonicalize(W.coordinator);
    world_in_coordinator = false;
    world_coming.from = NULL;
    world_coming.closed = 0;
    check_coordinator();
    memory_look();
}

void world_start_coordinator(void)
{
    static ps_coordinator_options o; // with nothing between its fields
    o.where = "tcp://127.0.0.1:1";
    o.job = "job";
    o.n_servers = S.servers;
    o.n_workers = S.workers;
    o.config_hash = o.plan_hash = 1;
    o.heartbeat_ms = HEARTBEAT_MS;
    o.dead_after_ms = DEAD_AFTER_MS;
    o.recovers = !S.alone;
    o.min_workers = S.elastic;
    o.expected_workers = W.processes[0].expected;
    o.goes_on = W.processes[0].served;
    o.wait_ms = DEAD_AFTER_MS;
    W.generation++;
    clear_stack();
    world_in_coordinator = true;
    if (ps_coordinator_create(&o, &W.coordinator) != PS_OK) abort();
    turn();
}

/* What it has sent may still come. */
static void coordinator_gone(void)
{
    W.coordinator = NULL;
    for (uint32_t i = 0; i < LINKS; i++)
        if (W.links[i].used) {
            W.links[i].gone = true;
            world_clear(W.links[i].up, &W.links[i].n_up);
        }
    memory_look();
    memset(W.draws, 0, sizeof W.draws); // with a generation they are secrets
}

void world_end_coordinator(void)
{
    world_in_coordinator = true;
    ps_coordinator_destroy(&W.coordinator, NULL);
    world_in_coordinator = false;
    world_waited_ns = 0;
    world_coming.from = NULL;
    if (W.used > 0) world_wrong("the coordinator has not given back %u bytes", W.used);
    coordinator_gone();
}

void world_kill_coordinator(void)
{
    memset(W.memory, 0, W.used);
    memset(W.blocks, 0, sizeof W.blocks);
    W.used = W.n_blocks = 0;
    coordinator_gone();
}

static const ps_coord_peer *peer_of(const connection *l)
{
    const ps_coordinator *c = W.coordinator;
    for (int i = 0; i < c->n_peers; i++)
        if (l->at_door ? memcmp(&c->peers[i].door_id, &l->id, sizeof l->id) == 0
                       : ps_control_id_is_of(&l->id, &c->peers[i].secret))
            return &c->peers[i];
    return NULL;
}

bool world_has_ended(void)
{
    for (int i = 0; i < W.coordinator->n_peers; i++) {
        const ps_coord_peer *p = &W.coordinator->peers[i];
        if (p->entry.role == PS_ROLE_WORKER && !p->gone) return false;
    }
    return true;
}

bool world_is_here(const connection *l)
{
    const ps_coord_peer *p = peer_of(l);
    return p && p->here;
}

/* Their hosts' names say which processes they are: "3.0". */
static int start_of(const ps_coord_peer *p)
{
    return p->is_back ? (int)p->incarnation : p->entry.host[2] - '0';
}

uint32_t world_process_of(uint32_t i)
{
    return (uint32_t)(W.coordinator->peers[i].entry.host[0] - '0');
}

/* False: the coordinator has dropped the process, or admitted a later start of it. */
static bool is_of_member(const connection *l)
{
    const ps_coord_peer *own = peer_of(l);
    bool old = false;
    for (int i = 0; i < W.coordinator->n_peers; i++) {
        const ps_coord_peer *p = &W.coordinator->peers[i];
        const bool same = world_process_of((uint32_t)i) == l->member;
        if (p == own) return same && start_of(p) == l->start;
        old |= same && start_of(p) > l->start && !S.unranked;
    }
    return l->at_door && !old;
}

static bool is_same(const connection *k, const connection *l)
{
    return k->used && k->at_door == l->at_door &&
           memcmp(&k->id, &l->id, sizeof l->id) == 0;
}

/* The handshake: a connection without a member's secret is closed. */
static bool shows_secret(connection *l)
{
    if (l->at_door || l->shown) return true;
    if (!peer_of(l)) {
        world_clear(l->up, &l->n_up);
        l->gone = true;
        return false;
    }
    for (uint32_t i = 0; i < LINKS; i++) {
        connection *k = &W.links[i];
        if (!is_same(k, l) || k->newer >= l->newer) continue;
        k->replaced = true;
        world_clear(k->up, &k->n_up);
    }
    l->shown = true;
    return true;
}

void world_up(uint32_t link)
{
    connection *l = &W.links[link];
    if (!shows_secret(l)) return;
    ps_control c;
    world_read_frame(l->up[0], &c);
    // A late HERE of one that was taking a place, too: another comes, as it says.
    const bool is_strange = !is_of_member(l) && !(S.paced && c.kind == PS_CONTROL_HERE);
    const uint64_t before = W.memory_hash;
    world_coming.from = l;
    turn();
    if (is_strange && W.memory_hash != before)
        world_wrong("a message of a process that was replaced changes something");
}

void world_closed(uint32_t link)
{
    W.links[link].noted = true;
    if (S.mistake == MISTAKE_CLOSED_IS_NOT_NOTED) return;
    world_coming.closed = FD + (int)link;
    turn();
}

/* At once: the shard is in the coordinator's process. */
void world_push(uint32_t m, uint64_t number)
{
    connection l = {.n_up = 1};
    ps_control c = {.kind = PS_CONTROL_PUSHED, .nonce = W.processes[0].nonce};
    c.pushed.rank = (uint64_t)W.processes[m].rank;
    c.pushed.number = number;
    c.pushed.shards = c.pushed.holders = 1;
    l.up[0] = world_frame(&c);
    ps_control_id_make(&l.id, &W.processes[0].secret, 1);
    world_coming.from = &l;
    turn();
}

/* ---- deaths ---- */

static bool comes(const ps_coord_peer *p)
{
    for (uint32_t i = 0; i < LINKS; i++) {
        const connection *l = &W.links[i];
        if (l->used && !l->gone && (l->open || l->cut || l->n_up > 0) && peer_of(l) == p)
            return true;
    }
    return false;
}

bool world_may_be_dead(int i)
{
    const ps_coord_peer *p = &W.coordinator->peers[i];
    if (p->gone || p->away) return false; // somebody takes its place
    if (!p->here && !p->lost_ns) return !comes(p);
    return p->lost_ns && (!comes(p) || W.delays > 0);
}

void world_dead(uint32_t i)
{
    ps_coord_peer *p = &W.coordinator->peers[i];
    if (comes(p)) {
        W.delays--;
        W.disturbed = true;
    }
    if (p->lost_ns)
        p->lost_ns = WORLD_NOW - (ps_coordinator_grace_ms(HEARTBEAT_MS, !S.alone) + 1) *
                                     UINT64_C(1000000);
    else
        p->heard_ns = WORLD_NOW - UINT64_C(10000000000);
    turn();
    turn(); // it looks whether those that are left suffice before it looks for deaths
}

bool world_may_begin(void)
{
    return W.coordinator && W.coordinator->waiting_ns > 0;
}

void world_begin(uint32_t host)
{
    W.coordinator->waiting_ns = 1;
    turn();
}

/* ---- states ---- */

uint8_t world_connect(uint32_t member, bool at_door, const ps_control_id *id)
{
    const uint32_t first = member * PER_MEMBER;
    uint32_t i = first;
    while (i < first + PER_MEMBER && W.links[i].used)
        i++;
    if (i == first + PER_MEMBER) abort(); // too small
    connection *l = &W.links[i];          // zeroed
    l->used = l->open = true;
    l->at_door = at_door;
    l->member = (uint8_t)member;
    l->start = W.processes[member].start;
    l->gone = !W.coordinator;
    l->id = *id;
    for (uint32_t k = first; k < first + PER_MEMBER; k++)
        if (!at_door && k != i && is_same(&W.links[k], l) && W.links[k].newer >= l->newer)
            l->newer = W.links[k].newer + 1;
    return (uint8_t)i;
}

/* Whether the coordinator may still notice anything of a closed connection. */
static bool matters(const connection *l)
{
    const ps_coordinator *c = W.coordinator;
    const int fd = FD + (int)(l - W.links);
    if (l->gone || (!l->at_door && !peer_of(l))) return false;
    for (int i = 0; c->state == PS_COORD_ABORTED && i < LINKS; i++)
        if (is_same(&W.links[i], l) && W.links[i].open) return l->n_up > 0;
    if (c->state == PS_COORD_ABORTED) return false; // its answer reaches nobody
    for (int i = 0; l->shown && !l->noted && i < c->n_peers; i++)
        if (c->peers[i].fd == fd) return true;
    return l->n_up > 0;
}

void world_tidy(void)
{
    for (uint32_t i = 0; i < LINKS; i++) {
        connection *l = &W.links[i];
        if (!l->used || l->open || l->cut) continue;
        world_clear(l->down, &l->n_down);
        if (!matters(l)) memset(l, 0, sizeof *l);
    }
}

static bool swap_links(process *p, uint32_t a, uint32_t b)
{
    const int fds[] = {FD + (int)a, FD + (int)b};
    bool known = false;
    const connection l = W.links[a];
    W.links[a] = W.links[b];
    W.links[b] = l;
    if (p->link == a || p->link == b) p->link = (uint8_t)(a + b - p->link);
    for (int i = 0; W.coordinator && i < W.coordinator->n_peers; i++) {
        int *fd = &W.coordinator->peers[i].fd;
        if (*fd != fds[0] && *fd != fds[1]) continue;
        *fd = fds[0] + fds[1] - *fd;
        known = true;
    }
    return known;
}

/* How many older ones of its id there are, not how many there have been. */
static void count_older(connection *l)
{
    uint8_t older[PER_MEMBER] = {0};
    for (int i = 0; i < PER_MEMBER; i++)
        for (int k = 0; k < PER_MEMBER; k++)
            older[i] += l[i].used && is_same(&l[k], &l[i]) && l[k].newer < l[i].newer;
    for (int i = 0; i < PER_MEMBER; i++)
        l[i].newer = older[i];
}

/* In which order a member's connections were made does not matter. */
void world_order_links(void)
{
    bool known = false;
    for (uint32_t first = 0; first < LINKS; first += PER_MEMBER) {
        const connection *l = W.links;
        count_older(&W.links[first]);
        for (uint32_t i = first + 1; i < first + PER_MEMBER; i++)
            for (uint32_t k = i; k > first && memcmp(&l[k], &l[k - 1], sizeof *l) > 0;
                 k--)
                known |= swap_links(&W.processes[first / PER_MEMBER], k, k - 1);
    }
    if (known) memory_look();
}

uint64_t world_hash(void)
{
    const uint64_t h = mix(W.memory_hash, &W, offsetof(world, blocks));
    return h ? h : 1;
}

void world_copy(world *to, const world *from)
{
    const uint64_t pages = to->version == from->version ? 0 : to->pages | from->pages;
    for (uint32_t i = 0; pages >> i; i++) {
        if (!(pages >> i & 1)) continue;
        if (from->pages >> i & 1)
            memcpy(to->memory + i * PAGE, from->memory + i * PAGE, PAGE);
        else
            memset(to->memory + i * PAGE, 0, PAGE);
        if (i == 63) break;
    }
    memcpy(to, from, offsetof(world, memory));
}

void world_open(const scenario *s)
{
    S = *s;
    if (S.servers == 0) S.servers = 2;
    if (S.workers == 0) S.workers = 2;
    S.elastic = S.comings > 0 || S.goings > 0;
    world_fault_text[0] = '\0';
    world_forget_frames();
    memset(&W, 0, sizeof W);
    stand_in_begin();
    stand_in_settle();
}

void world_allow_faults(void)
{
    W.deaths = S.deaths;
    W.cuts = S.cuts;
    W.aborts = S.aborts;
    W.delays = S.delays;
    W.comings = S.comings;
    W.goings = S.goings;
}
