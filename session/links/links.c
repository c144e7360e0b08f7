#include "links.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "event.h"
#include "link_meet.h"
#include "link_shm.h"
#include "link_traffic.h"
#include "thread.h"

/* How long a thread looks for what it waits for before it sleeps: about as long as it
 * takes to be woken. It gives the core away between looks. */
enum { LOOK_NS = 30000, SLEEP_MS = 50, ITEMS = PS_LINK_NET_ITEMS + 3 };
/* After a look that has cost the core for longer: for how many times as long none does.
 */
enum { LOOK_COST = 100 };

/* How long at most transfers stay without anybody who turns the links, on one host: until
 * then the program mostly waits for them, and does it itself. */
enum { PATIENCE_NS = 500000 };

/* Which messages with one tag match. */
enum { KEY_POINT_TO_POINT, KEY_FIRST, KEY_RESULTS, KEY_BYE };

/* How long a transfer stands still before it fails because a member has left: a program
 * may wait with a short timeout of its own, and go on. */
enum { GONE_NS = 2000000000 };

enum { LAST_CALLS = 16 };

/* Of a communicator: by this a message is known that is for a call of another kind, which
 * this worker has begun already. */
typedef struct ps_calls {
    uint64_t comm;              // its number
    uint64_t n;                 // collectives that have begun
    uint32_t codes[LAST_CALLS]; // of the last of them, by number
    bool refused;               // one was: what comes for it is no news
    struct ps_calls *next;
} ps_calls;

/* What a member's slice of a reduction needs. */
typedef struct slice {
    uint64_t bytes;
    uint64_t final;        // bytes of the result that are there
    uint8_t **kept;        // (n) by member: what came before the others'; owned
    uint64_t *got;         // (n) bytes that have come
    const void **operands; // (n)
} slice;

struct ps_transfer {
    ps_links *links;
    ps_transfer_options o;   // without parts
    ps_comm_members *comm;   // borrowed until it is freed
    ps_transfer_part *parts; // owned
    uint64_t tag;
    ps_flow *flows; // (n_flows) owned
    int n_flows, n_left;
    slice slice;
    uint64_t moved_ns;
    uint8_t word[2]; // of a barrier: what is sent, what comes
    int from;
    bool done;  // under the lock of the links, from here on
    bool alone; // nobody else is in it: done from the start, and there may be no links
    ps_err_saved failure;
    ps_transfer *next; // submitted, or active
};

struct ps_links {
    ps_links_options o;
    ps_link_ground ground;
    ps_event wake;
    _Atomic uint32_t lone_asleep, *asleep; // of this worker's board, where there is one
    ps_bell lone_bell, *bell;              // likewise
    int timer;                             // PATIENCE_NS are over: the thread has to come
    ps_thread thread;
    atomic_bool stop;

    // Whoever turns the links: to take and to give up `turning` needs the lock.
    ps_traffic *traffic;
    ps_transfer *active;        // in the order in which they began
    const ps_transfer *refused; // the last that was; only compared
    ps_calls *calls;            // of every communicator that had one; owned
    bool *gone; // (world_size) by rank: have said that they begin none any more
    bool leaves, said_bye; // this worker is one of them, and has said so
    bool timer_on;
    uint64_t look_after_ns; // others want the cores until then
    bool failed;            // all do
    ps_err_saved failure;

    pthread_mutex_t lock; // of what follows
    bool turning;
    pthread_cond_t free;    // nobody turns them
    atomic_bool watched;    // a thread is in links_watch; also read without the lock
    pthread_cond_t over;    // a transfer is done, or nobody watches
    ps_transfer *submitted; // in the order of calls
    bool bye;               // ps_links_bye was called
};

static const char *const call_texts[] = {
#define LINK_CALL(name, text) [PS_TRANSFER_##name] = text,
    PS_TRANSFER_CALLS(LINK_CALL)
#undef LINK_CALL
};

/* ---- what a call says ---- */

enum { CALL_BITS = 4, ROOT_BITS = 16 };

/* What the members have to agree on. */
static uint32_t code_of_call(const ps_transfer_options *o)
{
    const uint32_t call = o->call == PS_TRANSFER_RECV ? PS_TRANSFER_SEND : o->call;
    const uint32_t how = o->reduces ? (uint32_t)o->dtype << CALL_BITS | (uint32_t)o->op
                                    : (uint32_t)o->type_of_bytes;
    return ((uint32_t)o->root << 2 * CALL_BITS | how) << CALL_BITS | call;
}

static const char *text_of_code(uint32_t code)
{
    const uint32_t call = code & ((1u << CALL_BITS) - 1);
    return call < PS_TRANSFER_CALL_COUNT ? call_texts[call] : "something else";
}

/* ---- the end of a transfer ---- */

/* It is done, well or with the present failure. */
static void transfer_over(ps_links *l, ps_transfer *t, ps_err err)
{
    ps_transfer **at = &l->active;
    while (*at && *at != t)
        at = &(*at)->next;
    if (*at) *at = t->next;
    if (err != PS_OK) ps_traffic_forget(l->traffic, t);
    pthread_mutex_lock(&l->lock);
    t->failure.code = PS_OK;
    if (err != PS_OK) t->failure = ps_err_save(err);
    t->done = true;
    pthread_cond_broadcast(&l->over);
    pthread_mutex_unlock(&l->lock);
    if (atomic_exchange(&l->bell->wanted, 0)) ps_bell_ring(l->bell);
}

static void flow_over(void *owner, ps_flow *f)
{
    ps_transfer *t = f->of;
    f->done = true;
    if (t->o.call == PS_TRANSFER_RECV)
        for (int i = 0; i < t->comm->n; i++)
            if (t->comm->ranks[i] == f->rank) t->from = i;
    if (--t->n_left == 0) transfer_over(owner, t, PS_OK);
}

static void flow_moving(void *owner, ps_flow *f)
{
    ps_transfer *t = f->of;
    t->moved_ns = ps_clock_awake_ns();
}

/* Members call different things. The other one's call, and this one's. */
static ps_err calls_differ(const ps_links *l, ps_err code, int rank, uint32_t call,
                           uint64_t total, uint32_t own, const char *own_text,
                           uint64_t takes)
{
    const char *differs = call != own && text_of_code(call) == text_of_code(own)
                              ? ", with another type, operation or root"
                              : "";
    return ps_err_set(code,
                      "worker %d calls %s and sends worker %d %" PRIu64
                      " bytes, but worker %d calls %s and takes %" PRIu64 "%s",
                      rank, text_of_code(call), l->o.rank, total, l->o.rank, own_text,
                      takes, differs);
}

/* Whether there is a message from one member to another though it has no bytes: the two
 * may not agree on that. Where there is none, nobody would tell who gives what nobody
 * takes. */
static bool transfer_sends_nothing(const ps_transfer_options *o, int from, int to)
{
    switch (o->call) {
    case PS_TRANSFER_ALL_TO_ALL:
    case PS_TRANSFER_ALL_GATHER:
        return true;
    case PS_TRANSFER_BROADCAST:
    case PS_TRANSFER_SCATTER:
        return from == o->root;
    case PS_TRANSFER_GATHER:
        return to == o->root;
    default:
        return false;
    }
}

static bool transfer_has_posted(const ps_transfer *t, int member)
{
    for (int i = 0; i < t->n_flows; i++)
        if (t->flows[i].member == member) return true;
    return false;
}

/* Nothing more of the call is sent, so the others are told which one it was: else they
 * would wait for it. */
static ps_err transfer_tell(ps_links *l, const ps_transfer *t)
{
    const int self = t->comm->self;
    PS_TRY(ps_traffic_tell_unsent(l->traffic, t));
    for (int i = 0; i < t->comm->n; i++) {
        const ps_flow f = {.rank = t->comm->ranks[i],
                           .comm = t->comm->number,
                           .tag = t->tag,
                           .key = KEY_FIRST,
                           .call = code_of_call(&t->o)};
        if (i != self && !transfer_has_posted(t, i) &&
            (t->parts[i].send_bytes || transfer_sends_nothing(&t->o, self, i)))
            PS_TRY(ps_traffic_tell(l->traffic, &f));
    }
    return PS_OK;
}

static void transfer_refused(ps_links *l, ps_transfer *t, ps_err err)
{
    if (t->o.call > PS_TRANSFER_RECV) {
        t->comm->begun->refused = true;
        const ps_err_saved why = ps_err_save(err);
        err = transfer_tell(l, t) == PS_OK ? ps_err_restore(&why) : PS_ERR_NOMEM;
    }
    l->refused = t;
    transfer_over(l, t, err);
}

static void flow_refused(void *owner, ps_flow *f, uint32_t call, uint64_t total)
{
    ps_links *l = owner;
    ps_transfer *t = f->of;
    transfer_refused(l, t,
                     calls_differ(l, PS_ERR_ARG, f->rank, call, total, f->call,
                                  call_texts[t->o.call], f->total));
}

/* All end with the present failure, now and later. */
static void links_fail(ps_links *l, ps_err err)
{
    if (!l->failed) l->failure = ps_err_save(err);
    l->failed = true;
    while (l->active)
        transfer_over(l, l->active, ps_err_restore(&l->failure));
}

/* ---- what nobody waits for ---- */

/* Of a communicator; NULL: none has begun. */
static ps_calls *links_calls_of(const ps_links *l, uint64_t comm)
{
    ps_calls *c = l->calls;
    while (c && c->comm != comm)
        c = c->next;
    return c;
}

/* The collective begins. */
static ps_err links_count_call(ps_links *l, const ps_transfer *t)
{
    ps_comm_members *comm = t->comm;
    if (!comm->begun) comm->begun = links_calls_of(l, comm->number);
    if (!comm->begun) {
        PS_TRY(PS_NEW(&comm->begun, 1, "a communicator"));
        comm->begun->comm = comm->number;
        comm->begun->next = l->calls;
        l->calls = comm->begun;
    }
    comm->begun->n = t->tag + 1;
    comm->begun->codes[t->tag % LAST_CALLS] = code_of_call(&t->o);
    return PS_OK;
}

/* It is, where it is for a collective that has begun: all that this one waits for was
 * posted then. One that is done already, such as a broadcast of two roots, cannot fail
 * any more, so everything does. */
static bool message_unwanted(void *owner, int rank, const ps_link_head *h)
{
    ps_links *l = owner;
    if (h->key == KEY_BYE) {
        l->gone[rank] = true;
        return true;
    }
    ps_calls *calls = links_calls_of(l, h->comm);
    if (h->key == KEY_POINT_TO_POINT || !calls || h->tag >= calls->n) return false;
    if (calls->refused) return true;
    const uint32_t own =
        calls->n - h->tag <= LAST_CALLS ? calls->codes[h->tag % LAST_CALLS] : UINT32_MAX;
    ps_transfer *t = l->active;
    while (t && !(t->o.call > PS_TRANSFER_RECV && t->comm->number == h->comm &&
                  t->tag == h->tag))
        t = t->next;
    const ps_err err = calls_differ(l, t ? PS_ERR_ARG : PS_ERR_PEER, rank, h->call,
                                    h->total, own, text_of_code(own), 0);
    if (t)
        transfer_refused(l, t, err);
    else
        links_fail(l, err);
    return true;
}

/* ---- reductions ---- */

/* Reduces bytes [at, at + n) of the slice, of which every member's are there. now: those
 * of `member`, which are not kept. */
static void slice_reduce(ps_transfer *t, uint64_t at, uint64_t n, int member,
                         const uint8_t *now)
{
    slice *s = &t->slice;
    const ps_transfer_part *own = &t->parts[t->comm->self];
    const size_t bytes = ps_dtype_bytes((int)t->o.dtype);
    for (int m = 0; m < t->comm->n; m++)
        s->operands[m] = m == member          ? now
                         : m == t->comm->self ? (const uint8_t *)own->send + at
                                              : s->kept[m] + at;
    ps_typed_reduce((uint8_t *)own->recv + at, s->operands, t->comm->n, n / bytes,
                    (int)t->o.dtype, (int)t->o.op);
    s->final = at + n;
}

/* Pieces of each member come in order, so the last of them to come makes the piece whole:
 * it is used where it is. */
static void slice_take(ps_flow *f, const uint8_t *bytes, uint32_t n)
{
    ps_transfer *t = f->of;
    slice *s = &t->slice;
    const uint64_t at = s->got[f->member];
    bool whole = true;
    s->got[f->member] += n;
    for (int m = 0; m < t->comm->n; m++)
        whole = whole && (m == t->comm->self || s->got[m] >= at + n);
    if (whole)
        slice_reduce(t, at, n, f->member, bytes);
    else
        memcpy(s->kept[f->member] + at, bytes, n);
}

static ps_err slice_init(ps_transfer *t)
{
    slice *s = &t->slice;
    const size_t n = (size_t)t->comm->n;
    s->bytes = t->parts[t->comm->self].send_bytes;
    PS_TRY(PS_NEW(&s->kept, n, "a reduction"));
    PS_TRY(PS_NEW(&s->got, n, "a reduction"));
    PS_TRY(PS_NEW(&s->operands, n, "a reduction"));
    for (size_t m = 0; m < n && n > 2; m++)
        if ((int)m != t->comm->self)
            PS_TRY(ps_mem_zalloc(&s->kept[m], s->bytes, 1, "a reduction"));
    return PS_OK;
}

static void slice_fini(ps_transfer *t)
{
    for (int m = 0; t->slice.kept && m < t->comm->n; m++)
        free(t->slice.kept[m]);
    free(t->slice.kept);
    free(t->slice.got);
    free((void *)t->slice.operands);
}

/* ---- the messages of a transfer ---- */

static ps_flow *add_flow(ps_transfer *t, int member, uint32_t key, const void *at,
                         uint64_t bytes)
{
    ps_flow *f = &t->flows[t->n_flows++];
    *f = (ps_flow){.of = t,
                   .rank = member < 0 ? -1 : t->comm->ranks[member],
                   .ranks = t->comm->ranks,
                   .n_ranks = t->comm->n,
                   .member = member,
                   .comm = t->comm->number,
                   .tag = t->tag,
                   .key = key,
                   .call = code_of_call(&t->o),
                   .total = bytes,
                   .at = (uint8_t *)(uintptr_t)at};
    return f;
}

static void post_send(ps_transfer *t, ps_flow *f, const uint64_t *ready)
{
    f->ready = ready;
    ps_traffic_send(t->links->traffic, f);
}

/* With another member. */
static void post_part(ps_transfer *t, int member)
{
    const ps_transfer_part *part = &t->parts[member];
    const ps_transfer_part *own = &t->parts[t->comm->self];
    ps_flow *f;
    if (part->send_bytes || transfer_sends_nothing(&t->o, t->comm->self, member))
        post_send(t, add_flow(t, member, KEY_FIRST, part->send, part->send_bytes), NULL);
    const uint64_t comes = t->o.reduces ? own->send_bytes : part->recv_bytes;
    if (comes || transfer_sends_nothing(&t->o, member, t->comm->self)) {
        f = add_flow(t, member, KEY_FIRST, part->recv, comes);
        if (t->o.reduces) f->take = slice_take;
        ps_traffic_receive(t->links->traffic, f);
    }
    if (!t->o.reduces || !t->o.gathers) return;
    if (own->send_bytes)
        post_send(t, add_flow(t, member, KEY_RESULTS, own->recv, own->send_bytes),
                  &t->slice.final);
    if (part->send_bytes) {
        f = add_flow(t, member, KEY_RESULTS, part->recv, part->send_bytes);
        ps_traffic_receive(t->links->traffic, f);
    }
}

static void post_point_to_point(ps_transfer *t)
{
    const ps_transfer_part *part = &t->parts[0];
    if (t->o.call == PS_TRANSFER_SEND)
        post_send(
            t, add_flow(t, t->o.peer, KEY_POINT_TO_POINT, part->send, part->send_bytes),
            NULL);
    else
        ps_traffic_receive(t->links->traffic, add_flow(t, t->o.peer, KEY_POINT_TO_POINT,
                                                       part->recv, part->recv_bytes));
}

static void take_own_part(const ps_transfer *t)
{
    const ps_transfer_part *own = &t->parts[t->comm->self];
    if (own->recv && own->send != own->recv && own->send_bytes)
        memmove(own->recv, own->send, own->send_bytes);
}

/* Flows may be over while the others are posted: more are left until all are. One that is
 * refused may be freed already. */
static void transfer_start(ps_links *l, ps_transfer *t)
{
    const uint64_t comm = t->comm->number, tag = t->tag;
    const bool is_collective = t->o.call > PS_TRANSFER_RECV;
    const ps_err err = is_collective ? links_count_call(l, t) : PS_OK;
    if (err != PS_OK) {
        transfer_over(l, t, err);
        return;
    }
    ps_transfer **at = &l->active;
    while (*at)
        at = &(*at)->next;
    *at = t;
    t->next = NULL;
    t->moved_ns = ps_clock_awake_ns();
    t->n_left = INT32_MAX;
    l->refused = NULL;
    if (!is_collective) {
        post_point_to_point(t);
    } else {
        // the member after this one first: not all at once to the same
        for (int i = 1; l->refused != t && i < t->comm->n; i++)
            post_part(t, (t->comm->self + i) % t->comm->n);
        if (l->refused != t && !t->o.reduces) take_own_part(t);
    }
    if (l->refused == t) return;
    t->n_left -= INT32_MAX - t->n_flows;
    if (t->n_left == 0) transfer_over(l, t, PS_OK);
    if (is_collective) ps_traffic_look(l->traffic, comm, tag, KEY_POINT_TO_POINT);
}

/* ---- turning ---- */

static bool links_take_submitted(ps_links *l)
{
    pthread_mutex_lock(&l->lock);
    ps_transfer *t = l->submitted;
    l->submitted = NULL;
    l->leaves = l->leaves || l->bye;
    l->bye = false;
    pthread_mutex_unlock(&l->lock);
    const bool any = t != NULL;
    for (ps_transfer *next; t; t = next) {
        next = t->next;
        if (l->failed)
            transfer_over(l, t, ps_err_restore(&l->failure));
        else
            transfer_start(l, t);
    }
    return any;
}

/* Whom a transfer waits for: "1, 3". */
static void transfer_missing(const ps_transfer *t, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = '\0';
    for (int m = 0; m < t->comm->n && n + 16 < cap; m++) {
        bool missing = false;
        for (int i = 0; i < t->n_flows; i++)
            missing = missing || (!t->flows[i].done && t->flows[i].member == m);
        if (missing)
            n += (size_t)snprintf(out + n, cap - n, "%s%d", n ? ", " : "",
                                  t->comm->ranks[m]);
    }
    if (n == 0) snprintf(out, cap, "any");
}

/* The worker that has left though the transfer waits for it; -1: none. */
static int transfer_gone(const ps_links *l, const ps_transfer *t)
{
    if (ps_clock_awake_ns() < t->moved_ns + GONE_NS) return -1;
    for (int i = 0; i < t->n_flows; i++) {
        const ps_flow *f = &t->flows[i];
        int here = f->done || (f->rank >= 0 && !l->gone[f->rank]);
        for (int m = 0; f->rank < 0 && m < f->n_ranks; m++)
            here += m != t->comm->self && !l->gone[f->ranks[m]];
        if (!here) return f->rank < 0 ? f->ranks[t->comm->self == 0] : f->rank;
    }
    return -1;
}

static ps_err links_check(ps_links *l)
{
    const uint64_t most_ns = l->o.step_timeout_ms * 1000000u;
    PS_TRY(ps_member_check(l->o.member));
    for (const ps_transfer *t = l->active; t; t = t->next) {
        const int rank = transfer_gone(l, t);
        if (rank >= 0)
            return ps_err_set(PS_ERR_PEER,
                              "worker %d has left the job, and worker %d waits for it in "
                              "a call of %s: every worker must make the same steps and "
                              "calls",
                              rank, l->o.rank, call_texts[t->o.call]);
    }
    for (const ps_transfer *t = l->active; t; t = t->next) {
        char missing[128];
        if (ps_clock_awake_ns() < t->moved_ns + most_ns) continue;
        transfer_missing(t, missing, sizeof missing);
        return ps_err_set(PS_ERR_TIMEOUT,
                          "worker %s has not come to the call of %s for %" PRIu64
                          " ms (net.step_timeout_ms)",
                          missing, call_texts[t->o.call], l->o.step_timeout_ms);
    }
    return PS_OK;
}

static ps_err links_say_bye(ps_links *l)
{
    if (!l->leaves || l->said_bye || l->active) return PS_OK;
    l->said_bye = true;
    for (int r = 0; r < l->o.world_size; r++)
        if (r != l->o.rank)
            PS_TRY(ps_traffic_tell(l->traffic, &(ps_flow){.rank = r, .key = KEY_BYE}));
    return PS_OK;
}

/* Whether anything has moved. A failure is that of all. */
static bool links_turn(ps_links *l)
{
    bool moved = links_take_submitted(l);
    if (l->failed) return moved;
    ps_err err = links_say_bye(l);
    if (err == PS_OK && l->ground.net) err = ps_link_net_turn(l->ground.net, &moved);
    if (err == PS_OK) err = ps_traffic_turn(l->traffic, &moved);
    if (err != PS_OK) links_fail(l, err);
    return moved;
}

/* Gives the core away once. Where it comes back late, others want it. Then a thread that
 * sleeps and is woken gets it sooner than one that looks. */
static uint64_t links_yield(ps_links *l, uint64_t now_ns)
{
    sched_yield();
    const uint64_t back_ns = ps_clock_ns(), away_ns = back_ns - now_ns;
    if (away_ns > LOOK_NS) l->look_after_ns = back_ns + LOOK_COST * away_ns;
    return back_ns;
}

/* Turns them until something moves or LOOK_NS have passed. */
static bool links_look(ps_links *l)
{
    bool moved = links_turn(l);
    uint64_t now_ns = ps_clock_ns();
    const uint64_t end_ns = now_ns < l->look_after_ns ? 0 : now_ns + LOOK_NS;
    while (!moved && l->active && now_ns < end_ns) {
        now_ns = links_yield(l, now_ns);
        moved = links_turn(l);
    }
    return moved;
}

/* Fails all where the job is over or a deadline has passed. */
static void links_judge(ps_links *l)
{
    const ps_err err = l->failed ? PS_OK : links_check(l);
    if (err != PS_OK) links_fail(l, err);
}

static void links_acquire(ps_links *l)
{
    pthread_mutex_lock(&l->lock);
    while (l->turning)
        pthread_cond_wait(&l->free, &l->lock);
    l->turning = true;
    pthread_mutex_unlock(&l->lock);
}

/* False: no, there are new transfers, or a bye. */
static bool links_release(ps_links *l)
{
    pthread_mutex_lock(&l->lock);
    const bool can = !l->submitted && !l->bye;
    if (can) {
        l->turning = false;
        pthread_cond_signal(&l->free);
    }
    pthread_mutex_unlock(&l->lock);
    return can;
}

/* ---- by the program's threads, on one host ---- */

/* Whether there is something to turn them for. */
static bool links_are_busy(const ps_links *l)
{
    return l->active || (!l->failed &&
                         ((l->leaves && !l->said_bye) || ps_traffic_is_amid(l->traffic)));
}

/* It stays on when somebody turns them again: to set it costs more than to wake the
 * thread in vain once in a while. */
static void links_set_timer(ps_links *l)
{
    const struct itimerspec when = {.it_value.tv_nsec = PATIENCE_NS};
    if (!l->timer_on) timerfd_settime(l->timer, 0, &when, NULL);
    l->timer_on = true;
}

/* Turns them a last time. Whether anything has moved. */
static bool links_turn_last(ps_links *l)
{
    const bool moved = links_turn(l);
    const ps_err err = l->failed ? PS_OK : ps_traffic_rest(l->traffic);
    if (err != PS_OK) links_fail(l, err);
    return moved;
}

/* Turns them once, and gives them up. Where nobody else turns them soon, the thread does:
 * it is woken by what comes (asleep), or by the timer. */
static void links_leave(ps_links *l)
{
    do {
        links_turn_last(l);
        if (!atomic_load(&l->watched) && !atomic_load(l->asleep) && links_are_busy(l))
            links_set_timer(l);
    } while (!links_release(l));
}

/* Sleeps until another worker or thread rings, or something is to be judged. */
static void links_doze(ps_links *l, const ps_transfer *t, ps_deadline deadline)
{
    atomic_store(&l->bell->wanted, 1);
    const uint32_t sequence = ps_bell_sequence(l->bell);
    if (!links_turn_last(l) && !t->done && links_release(l)) {
        ps_bell_sleep(l->bell, sequence, ps_deadline_left_ms_max(deadline, SLEEP_MS));
        links_acquire(l);
    }
    atomic_store(&l->bell->wanted, 0);
}

/* Turns them until t is done or the deadline has passed. */
static void links_watch(ps_links *l, const ps_transfer *t, ps_deadline deadline)
{
    links_acquire(l);
    atomic_store(l->asleep, 0);
    while (!t->done && !ps_deadline_passed(deadline)) {
        if (links_look(l)) continue;
        links_doze(l, t, deadline);
        links_judge(l);
    }
    atomic_store(&l->watched, false);
    links_leave(l);
}

/* ---- by the thread ---- */

/* Whether it has to turn them: always between hosts. */
static bool links_need_thread(const ps_links *l)
{
    return l->ground.net || (!atomic_load(&l->watched) && links_are_busy(l));
}

/* Until there is something for it. */
static void links_poll(ps_links *l, int ms)
{
    zmq_pollitem_t items[ITEMS] = {
        {.fd = ps_event_fd(&l->wake), .events = ZMQ_POLLIN},
        {.fd = l->timer, .events = ZMQ_POLLIN},
        {.fd = ps_member_abort_fd(l->o.member), .events = ZMQ_POLLIN}};
    uint64_t expired = 0;
    int n = l->failed ? 2 : 3; // the abort is known
    if (l->ground.net && !l->failed) {
        n += ps_link_net_items(l->ground.net, items + n);
        const int net_ms = ps_link_net_poll_ms(l->ground.net);
        if (net_ms >= 0 && (ms < 0 || net_ms < ms)) ms = net_ms;
    }
    if (!links_release(l)) {
        links_turn(l); // takes them
        return;
    }
    zmq_poll(items, n, ms);
    ps_event_clear(&l->wake);
    if (items[1].revents) (void)!read(l->timer, &expired, sizeof expired);
    links_acquire(l);
    if (expired) l->timer_on = false;
}

static void links_sleep(ps_links *l)
{
    const bool needed = links_need_thread(l);
    ps_err err = l->failed ? PS_OK : ps_traffic_rest(l->traffic);
    atomic_store(l->asleep, needed);
    if (err == PS_OK && !(needed && links_turn(l)) && !atomic_load(&l->stop)) {
        const bool judges = l->ground.net ? l->active != NULL : needed;
        links_poll(l, judges ? SLEEP_MS : -1);
        if (l->ground.net && !l->failed) err = ps_link_net_mend(l->ground.net);
    }
    atomic_store(l->asleep, 0);
    if (err != PS_OK) links_fail(l, err);
    links_judge(l);
}

static void *links_main(void *arg)
{
    ps_links *l = arg;
    links_acquire(l);
    while (!atomic_load(&l->stop))
        if (!links_need_thread(l) || !links_look(l)) links_sleep(l);
    links_fail(
        l, ps_err_set(PS_ERR_ARG, "the session has ended, and nobody waited for this"));
    do {
        links_take_submitted(l); // all fail
    } while (!links_release(l));
    return NULL;
}

static void links_wake(ps_links *l)
{
    if (atomic_exchange(l->asleep, 0)) ps_event_set(&l->wake);
}

/* ---- calls ---- */

static ps_err transfer_check(const ps_comm_members *c, const ps_transfer_options *o)
{
    const bool to_one = o->call == PS_TRANSFER_SEND || o->call == PS_TRANSFER_RECV;
    const bool any = o->peer == -1 && o->call == PS_TRANSFER_RECV && c->n > 1;
    if ((int)o->call < 0 || o->call >= PS_TRANSFER_CALL_COUNT ||
        (!o->parts && o->call != PS_TRANSFER_BARRIER))
        return ps_err_set(PS_ERR_ARG, "there is no such transfer");
    if (to_one && !any && (o->peer < 0 || o->peer >= c->n || o->peer == c->self))
        return ps_err_set(PS_ERR_ARG,
                          "%s: %d is not the rank of another member (0 to %d)",
                          call_texts[o->call], o->peer, c->n - 1);
    if (o->root < 0 || o->root >= (c->n > 1 << ROOT_BITS ? 1 << ROOT_BITS : c->n))
        return ps_err_set(PS_ERR_ARG, "%s: there is no rank %d among %d",
                          call_texts[o->call], o->root, c->n);
    if (o->reduces && !ps_reduce_fits((int)o->dtype, (int)o->op))
        return ps_err_set(PS_ERR_ARG, "%s: no such operation for this type",
                          call_texts[o->call]);
    return PS_OK;
}

static ps_err transfer_make(ps_links *l, ps_comm_members *comm,
                            const ps_transfer_options *o, ps_transfer **out)
{
    const size_t n = o->call <= PS_TRANSFER_RECV ? 1 : (size_t)comm->n;
    ps_transfer *t;
    PS_TRY(PS_NEW(out, 1, "a transfer"));
    t = *out;
    t->links = l;
    t->o = *o;
    t->comm = comm;
    PS_TRY(PS_NEW(&t->parts, n, "a transfer"));
    PS_TRY(PS_NEW(&t->flows, 4 * n, "a transfer"));
    if (o->parts) memcpy(t->parts, o->parts, n * sizeof *t->parts);
    for (size_t m = 0; m < n && o->call == PS_TRANSFER_BARRIER; m++)
        t->parts[m] = (ps_transfer_part){&t->word[0], 1, &t->word[1], 1};
    t->o.parts = NULL;
    t->tag = o->tag;
    if (o->reduces) PS_TRY(slice_init(t));
    return PS_OK;
}

static void transfer_free(ps_transfer **pointer)
{
    ps_transfer *t = *pointer;
    if (!t) return;
    slice_fini(t);
    free(t->parts);
    free(t->flows);
    free(t);
    *pointer = NULL;
}

/* Nobody else is in it. */
static void transfer_alone(ps_transfer *t)
{
    take_own_part(t);
    t->alone = t->done = true;
}

/* Somebody takes what was submitted. The caller holds the lock, which is given up. */
static void links_unlock_and_turn(ps_links *l)
{
    const bool turns = !l->ground.net && !l->turning;
    l->turning = l->turning || turns;
    pthread_mutex_unlock(&l->lock);
    if (turns)
        links_leave(l);
    else if (l->ground.net)
        links_wake(l);
}

static void links_submit(ps_links *l, ps_comm_members *comm, ps_transfer *t)
{
    pthread_mutex_lock(&l->lock);
    if (t->o.call > PS_TRANSFER_RECV) t->tag = comm->calls++;
    ps_transfer **at = &l->submitted;
    while (*at)
        at = &(*at)->next;
    *at = t;
    links_unlock_and_turn(l);
}

void ps_links_bye(ps_links *l)
{
    pthread_mutex_lock(&l->lock);
    l->bye = true;
    links_unlock_and_turn(l);
}

ps_err ps_transfer_begin(ps_links *l, ps_comm_members *comm, const ps_transfer_options *o,
                         ps_transfer **out)
{
    *out = NULL;
    PS_TRY(transfer_check(comm, o));
    ps_err err = transfer_make(l, comm, o, out);
    if (err != PS_OK) {
        transfer_free(out);
    } else if (comm->n == 1) {
        transfer_alone(*out);
    } else {
        links_submit(l, comm, *out);
    }
    return err;
}

ps_err ps_transfer_wait(ps_transfer *t, ps_deadline deadline, bool *done)
{
    ps_links *l = t->links;
    *done = true;
    if (t->alone) return PS_OK;
    pthread_mutex_lock(&l->lock);
    while (!t->done && !ps_deadline_passed(deadline)) {
        if (l->ground.net || atomic_load(&l->watched)) {
            ps_cond_wait(&l->over, &l->lock, deadline);
            continue;
        }
        atomic_store(&l->watched, true);
        pthread_mutex_unlock(&l->lock);
        links_watch(l, t, deadline);
        pthread_mutex_lock(&l->lock);
        pthread_cond_broadcast(&l->over);
    }
    *done = t->done;
    pthread_mutex_unlock(&l->lock);
    return *done && t->failure.code != PS_OK ? ps_err_restore(&t->failure) : PS_OK;
}

int ps_transfer_from(const ps_transfer *t)
{
    return t->from;
}

ps_err ps_transfer_end(ps_transfer **t)
{
    bool done;
    (void)ps_transfer_wait(*t, ps_deadline_in_ms(0), &done);
    if (!done)
        return ps_err_set(PS_ERR_ARG, "a transfer of %s goes on: wait for it",
                          call_texts[(*t)->o.call]);
    transfer_free(t);
    return PS_OK;
}

/* ---- start and end ---- */

static ps_err links_start(ps_links *l)
{
    const size_t n = (size_t)l->o.world_size;
    ps_link **links;
    const ps_traffic_events events = {.over = flow_over,
                                      .refused = flow_refused,
                                      .moving = flow_moving,
                                      .unwanted = message_unwanted,
                                      .owner = l};
    PS_TRY(PS_NEW(&links, n, "links"));
    ps_err err = ps_link_meet(&l->ground, &l->o, &l->wake, links);
    if (err == PS_OK) err = ps_traffic_create(links, (int)n, &events, &l->traffic);
    for (size_t r = 0; r < n && !l->traffic; r++)
        if (links[r]) links[r]->ops->destroy(links[r]);
    free(links);
    if (err != PS_OK) return err;
    ps_link_board *board = l->ground.board.base;
    l->asleep = board ? ps_link_board_asleep(board) : &l->lone_asleep;
    l->bell = board ? ps_link_board_bell(board) : &l->lone_bell;
    return ps_thread_start(&l->thread, "links", links_main, l);
}

ps_err ps_links_open(const ps_links_options *o, ps_links **out)
{
    ps_links *l;
    PS_TRY(PS_NEW(out, 1, "links"));
    l = *out;
    l->o = *o;
    pthread_mutex_init(&l->lock, NULL);
    ps_cond_init(&l->over);
    ps_cond_init(&l->free);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    ps_err err = ps_event_init(&l->wake);
    if (err == PS_OK) err = PS_NEW(&l->gone, (size_t)o->world_size, "links");
    if (err == PS_OK && l->timer < 0) err = ps_err_errno(PS_ERR_IO, "a timer");
    if (err == PS_OK) err = links_start(l);
    if (err != PS_OK) ps_links_close(out);
    return err;
}

bool ps_links_one_host(const ps_links *l)
{
    return !l->ground.net;
}

void ps_links_close(ps_links **pointer)
{
    ps_links *l = *pointer;
    if (!l) return;
    atomic_store(&l->stop, true);
    if (l->thread.runs) ps_event_set(&l->wake);
    ps_thread_join(&l->thread);
    ps_traffic_destroy(&l->traffic);
    ps_link_ground_fini(&l->ground);
    ps_event_fini(&l->wake);
    if (l->timer >= 0) close(l->timer);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->over);
    pthread_cond_destroy(&l->free);
    for (ps_calls *c = l->calls, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(l->gone);
    free(l);
    *pointer = NULL;
}
