#include "coord_board.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coord_store.h"
#include "job_keys.h"
#include "mem.h"

enum {
    MAX_WAITERS = 64, // of a member; each of its threads waits for one at most
    GATHER_BYTES_MAX = PS_CONTROL_GATHER_MAX * sizeof(double),
    SUMS = 8 // gathers whose results are kept: more than a worker asks for at once
};

typedef struct waiter {
    struct waiter *next;
    ps_coord_asker from;
    ps_control_kind kind; // GATHER or GET
    uint64_t request;
    uint64_t timeout_ms;
    ps_deadline deadline;
    char name[PS_CONTROL_NAME_MAX];
    double *values; // GATHER: n of them, owned
    size_t n;
} waiter;

/* A finished gather, for workers whose answer was lost. */
typedef struct kept_sum {
    char name[PS_CONTROL_NAME_MAX];
    uint64_t *requests; // by worker: its request number; NULL: nothing is kept here
    double *values;     // n of them
    size_t n;
} kept_sum;

struct ps_coord_board {
    int n_workers;
    ps_coord_answer answer;
    void *owner;
    ps_coord_store store;
    uint32_t table; // the newest of which a key is there
    waiter *waiters;
    bool *left; // by worker
    bool *scratch;
    ps_coord_norms norms;
    kept_sum sums[SUMS];
    uint64_t n_sums;         // ever
    ps_coord_orders *orders; // NULL: not with this policy, or no push has come yet
};

ps_err ps_coord_board_create(int n_workers, ps_coord_answer answer, void *owner,
                             ps_coord_board **out)
{
    ps_coord_board *b;
    PS_TRY(PS_NEW(out, 1, "coordinator"));
    b = *out;
    *b = (ps_coord_board){.n_workers = n_workers,
                          .answer = answer,
                          .owner = owner,
                          .norms = {.answer = answer, .owner = owner}};
    size_t n = (size_t)n_workers;
    ps_err err = PS_NEW(&b->left, n, "coordinator");
    if (err == PS_OK) err = PS_NEW(&b->scratch, n, "coordinator");
    if (err != PS_OK) ps_coord_board_destroy(out);
    return err;
}

void ps_coord_board_set_workers(ps_coord_board *b, int n_workers)
{
    b->n_workers = n_workers;
}

static void free_waiter(waiter *w)
{
    free(w->values);
    free(w);
}

void ps_coord_board_destroy(ps_coord_board **board)
{
    ps_coord_board *b = *board;
    if (!b) return;
    ps_coord_store_fini(&b->store);
    for (waiter *w = b->waiters, *next; w; w = next) {
        next = w->next;
        free_waiter(w);
    }
    ps_coord_norms_fini(&b->norms);
    for (int i = 0; i < SUMS; i++) {
        free(b->sums[i].requests);
        free(b->sums[i].values);
    }
    ps_coord_orders_destroy(&b->orders);
    free(b->left);
    free(b->scratch);
    free(b);
    *board = NULL;
}

static void answer_done(ps_coord_board *b, const ps_control_id *to, uint64_t request,
                        const void *value, size_t bytes)
{
    const ps_control c = {
        .kind = PS_CONTROL_DONE, .request = request, .value = value, .bytes = bytes};
    b->answer(b->owner, to, &c);
}

/* Takes the waiter out of the list and frees it; *at then points to the next one. */
static void board_drop(waiter **at)
{
    waiter *w = *at;
    *at = w->next;
    free_waiter(w);
}

/* Drops the waiter and sends it this thread's last error. */
static void board_fail(ps_coord_board *b, waiter **at, ps_err code)
{
    ps_coord_answer_fail(b->answer, b->owner, &(*at)->from.id, (*at)->request, code);
    board_drop(at);
}

static bool board_waits_for(const waiter *w, ps_control_kind kind, const char *name)
{
    return w->kind == kind && strcmp(w->name, name) == 0;
}

/* Takes out every waiter of the kind and name, and answers it: with DONE and the value,
 * or, where code is not PS_OK, with the last error. */
static void board_release(ps_coord_board *b, ps_control_kind kind, const char *name,
                          ps_err code, const void *value, size_t bytes)
{
    for (waiter **at = &b->waiters; *at;) {
        if (!board_waits_for(*at, kind, name)) {
            at = &(*at)->next;
        } else if (code != PS_OK) {
            board_fail(b, at, code);
        } else {
            answer_done(b, &(*at)->from.id, (*at)->request, value, bytes);
            board_drop(at);
        }
    }
}

static bool same_member(const ps_control_id *a, const ps_control_id *b)
{
    return memcmp(a->bytes, b->bytes, PS_SECRET_BYTES) == 0;
}

static int count_waiters(const ps_coord_board *b, const ps_control_id *from)
{
    int n = 0;
    for (const waiter *w = b->waiters; w; w = w->next)
        n += same_member(&w->from.id, from);
    return n;
}

static ps_err add_waiter(ps_coord_board *b, const ps_coord_asker *from,
                         const ps_control *c, waiter **out)
{
    if (count_waiters(b, &from->id) >= MAX_WAITERS)
        return ps_err_set(PS_ERR_PEER, "more than %d waiting requests of one member",
                          MAX_WAITERS);
    waiter *w;
    PS_TRY(PS_NEW(out, 1, "a waiting request"));
    w = *out;
    w->from = *from;
    w->kind = c->kind;
    w->request = c->request;
    w->timeout_ms = c->timeout_ms;
    w->deadline = ps_deadline_in_ms(c->timeout_ms);
    memcpy(w->name, c->name, sizeof w->name);
    w->next = b->waiters;
    b->waiters = w;
    return PS_OK;
}

/* ---- sums over the workers ---- */

/* The word for a gather in messages: one without values is a barrier. */
static const char *gather_word(size_t n)
{
    return n == 0 ? "barrier" : "reduction";
}

/* Sets present[r] to whether worker r waits in the gather. Returns how many do. */
static int mark_present(const ps_coord_board *b, const char *name, bool *present)
{
    int n = 0;
    memset(present, 0, (size_t)b->n_workers * sizeof *present);
    for (const waiter *w = b->waiters; w; w = w->next)
        if (board_waits_for(w, PS_CONTROL_GATHER, name)) {
            present[w->from.rank] = true;
            n++;
        }
    return n;
}

static const waiter *find_gather(const ps_coord_board *b, const char *name, int rank)
{
    for (const waiter *w = b->waiters; w; w = w->next)
        if (board_waits_for(w, PS_CONTROL_GATHER, name) &&
            (rank < 0 || w->from.rank == rank))
            return w;
    return NULL;
}

/* Makes room for a new result of n values in the place of the oldest one. */
static ps_err make_sum(ps_coord_board *b, size_t n, kept_sum **out)
{
    kept_sum *s = *out = &b->sums[b->n_sums++ % SUMS];
    free(s->requests);
    free(s->values);
    *s = (kept_sum){.n = n};
    PS_TRY(PS_NEW(&s->values, n, "a reduction"));
    return PS_NEW(&s->requests, (size_t)b->n_workers, "a reduction");
}

/* Completes a gather: adds in rank order and answers all workers. */
static void finish_gather(ps_coord_board *b, const char *name)
{
    kept_sum *s;
    char kept[PS_CONTROL_NAME_MAX];
    snprintf(kept, sizeof kept, "%s", name);
    size_t n = find_gather(b, kept, 0)->n;
    ps_err err = make_sum(b, n, &s);
    memcpy(s->name, kept, sizeof s->name);
    for (int r = 0; r < b->n_workers && err == PS_OK; r++) {
        const waiter *w = find_gather(b, kept, r);
        s->requests[r] = w->request;
        for (size_t i = 0; i < n; i++)
            s->values[i] = r == 0 ? w->values[i] : s->values[i] + w->values[i];
    }
    board_release(b, PS_CONTROL_GATHER, kept, err, s->values, n * sizeof *s->values);
}

/* The result of a finished gather that the worker asks for again, or NULL. */
static const kept_sum *find_sum(const ps_coord_board *b, int rank, const ps_control *c)
{
    for (int i = 0; i < SUMS && rank >= 0 && rank < b->n_workers; i++) {
        const kept_sum *s = &b->sums[i];
        if (s->requests && s->requests[rank] == c->request &&
            strcmp(s->name, c->name) == 0)
            return s;
    }
    return NULL;
}

static ps_err has_left(const char *word, const char *name, int rank)
{
    return ps_err_set(PS_ERR_PEER,
                      "%s \"%s\": worker %d has left the job: every worker must make the "
                      "same steps and calls",
                      word, name, rank);
}

static ps_err check_gather(const ps_coord_board *b, const ps_coord_asker *from,
                           const ps_control *c)
{
    const int rank = from->rank;
    if (from->role != PS_ROLE_WORKER || rank < 0 || rank >= b->n_workers)
        return ps_err_set(PS_ERR_ARG, "%s: only workers take part in it", c->name);
    if (c->bytes > GATHER_BYTES_MAX || c->bytes % sizeof(double) != 0)
        return ps_err_set(PS_ERR_ARG, "%s: %zu bytes are not the values of a reduction",
                          c->name, c->bytes);
    for (int r = 0; r < b->n_workers; r++)
        if (b->left[r]) return has_left(gather_word(c->bytes), c->name, r);
    const waiter *other = find_gather(b, c->name, -1);
    if (other && other->n != c->bytes / sizeof(double))
        return ps_err_set(PS_ERR_PEER,
                          "%s: worker %d gives %zu values, worker %d gives %zu", c->name,
                          other->from.rank, other->n, rank, c->bytes / sizeof(double));
    return PS_OK;
}

static void drop_gather(ps_coord_board *b, const char *name, int rank)
{
    for (waiter **at = &b->waiters; *at; at = &(*at)->next)
        if (board_waits_for(*at, PS_CONTROL_GATHER, name) && (*at)->from.rank == rank) {
            board_drop(at);
            return;
        }
}

static ps_err request_gather(ps_coord_board *b, const ps_coord_asker *from,
                             const ps_control *c)
{
    const kept_sum *again =
        from->role == PS_ROLE_WORKER ? find_sum(b, from->rank, c) : NULL;
    if (again) {
        answer_done(b, &from->id, c->request, again->values, again->n * sizeof(double));
        return PS_OK;
    }
    PS_TRY(check_gather(b, from, c));
    // A worker that gave up waiting and asks again is counted once.
    drop_gather(b, c->name, from->rank);
    double *values;
    PS_TRY(ps_mem_zalloc(&values, c->bytes, 1, "a reduction"));
    if (c->bytes > 0) memcpy(values, c->value, c->bytes);
    waiter *w;
    ps_err err = add_waiter(b, from, c, &w);
    if (err != PS_OK) {
        free(values);
        return err;
    }
    w->values = values;
    w->n = c->bytes / sizeof(double);
    if (mark_present(b, c->name, b->scratch) == b->n_workers) finish_gather(b, c->name);
    return PS_OK;
}

/* A server waits on: it ends with the job. */
static bool waits_in_vain(const waiter *w, int left)
{
    return w->kind == PS_CONTROL_GATHER ||
           (w->from.role == PS_ROLE_WORKER && ps_job_key_is_of_worker(w->name, left));
}

void ps_coord_board_worker_left(ps_coord_board *b, int rank)
{
    b->left[rank] = true;
    for (waiter **at = &b->waiters; *at;) {
        const waiter *w = *at;
        const char *word = w->kind == PS_CONTROL_GET ? "key" : gather_word(w->n);
        if (waits_in_vain(w, rank))
            board_fail(b, at, has_left(word, w->name, rank));
        else
            at = &(*at)->next;
    }
}

void ps_coord_board_forget(ps_coord_board *b, const ps_secret *member)
{
    for (waiter **at = &b->waiters; *at;) {
        if (ps_control_id_is_of(&(*at)->from.id, member))
            board_drop(at);
        else
            at = &(*at)->next;
    }
}

void ps_coord_board_renew(ps_coord_board *b, const ps_secret *member, int rank)
{
    ps_coord_board_forget(b, member);
    for (int i = 0; i < SUMS; i++)
        if (b->sums[i].requests) b->sums[i].requests[rank] = UINT64_MAX;
}

ps_coord_orders *ps_coord_board_orders(ps_coord_board *b)
{
    return b->orders;
}

/* ---- key-value store ---- */

/* Sets a key, and answers those who wait for it. */
static ps_err board_set_key(ps_coord_board *b, const char *key, const void *from,
                            size_t bytes)
{
    const void *value;
    PS_TRY(ps_coord_store_set(&b->store, key, from, bytes));
    ps_coord_store_get(&b->store, key, &value, &bytes);
    board_release(b, PS_CONTROL_GET, key, PS_OK, value, bytes);
    return PS_OK;
}

static ps_err board_check_setter(const ps_coord_asker *from, const char *key)
{
    if (ps_job_key_may_set(key, from->role, from->rank)) return PS_OK;
    return ps_err_set(PS_ERR_PEER, "%s: %s %d may not set this key", key,
                      ps_role_name(from->role), from->rank);
}

/* The first key of another table drops those of the last but one: whoever sets it has
 * been through the last, and with it all others have left the one before. */
static void drop_old_table(ps_coord_board *b, const char *key)
{
    const uint32_t table = ps_job_key_table(key);
    if (table <= b->table) return;
    b->table = table;
    if (table <= 2) return; // those of the first bear no number
    char old[PS_CONTROL_NAME_MAX];
    snprintf(old, sizeof old, PS_JOB_KEY_TABLE "%" PRIu32 "/", table - 2);
    ps_coord_store_drop_all(&b->store, old);
}

static ps_err request_put(ps_coord_board *b, const ps_coord_asker *from,
                          const ps_control *c)
{
    PS_TRY(board_check_setter(from, c->name));
    PS_TRY(board_set_key(b, c->name, c->value, c->bytes));
    drop_old_table(b, c->name);
    if (b->orders) PS_TRY(ps_coord_orders_set(b->orders, c->name, c->value, c->bytes));
    answer_done(b, &from->id, c->request, NULL, 0);
    return PS_OK;
}

static ps_err request_drop(ps_coord_board *b, const ps_coord_asker *from,
                           const ps_control *c)
{
    PS_TRY(board_check_setter(from, c->name));
    ps_coord_store_drop(&b->store, c->name);
    answer_done(b, &from->id, c->request, NULL, 0);
    return PS_OK;
}

/* A repetition replaces the request. */
static void drop_get(ps_coord_board *b, const ps_control_id *from, uint64_t request)
{
    for (waiter **at = &b->waiters; *at; at = &(*at)->next)
        if ((*at)->kind == PS_CONTROL_GET && (*at)->request == request &&
            same_member(&(*at)->from.id, from)) {
            board_drop(at);
            return;
        }
}

static ps_err request_get(ps_coord_board *b, const ps_coord_asker *from,
                          const ps_control *c)
{
    const void *value;
    size_t bytes;
    if (ps_coord_store_get(&b->store, c->name, &value, &bytes)) {
        answer_done(b, &from->id, c->request, value, bytes);
        return PS_OK;
    }
    waiter *w;
    drop_get(b, &from->id, c->request);
    for (int r = 0; r < b->n_workers && from->role == PS_ROLE_WORKER; r++)
        if (b->left[r] && ps_job_key_is_of_worker(c->name, r))
            return has_left("key", c->name, r);
    return add_waiter(b, from, c, &w);
}

/* ---- orders, where workers go on at their own pace ---- */

static void send_order(void *owner, const ps_control_id *to, const ps_control *order)
{
    ps_coord_board *b = owner;
    b->answer(b->owner, to, order);
}

static ps_err store_record(void *owner, const char *key, const void *value, size_t bytes)
{
    return board_set_key(owner, key, value, bytes);
}

static ps_err make_orders(ps_coord_board *b)
{
    const ps_coord_orders_hooks hooks = {
        .owner = b, .send = send_order, .store = store_record};
    const void *rules;
    size_t bytes;
    if (!ps_coord_store_get(&b->store, PS_JOB_KEY_POLICY, &rules, &bytes))
        return ps_err_set(PS_ERR_PROTOCOL, "a push before worker 0 has set the policy");
    PS_TRY(ps_coord_orders_create(&hooks, rules, bytes, &b->orders));
    const ps_job_key reentry = ps_job_key_reentry(0);
    const char *const before[] = {PS_JOB_KEY_POLICY_BATCHES, PS_JOB_KEY_POLICY_END,
                                  reentry.text};
    for (int i = 0; i < 3; i++)
        if (ps_coord_store_get(&b->store, before[i], &rules, &bytes))
            PS_TRY(ps_coord_orders_set(b->orders, before[i], rules, bytes));
    return PS_OK;
}

static ps_err request_pushed(ps_coord_board *b, const ps_coord_asker *from,
                             const ps_control *c)
{
    if (from->role != PS_ROLE_SERVER)
        return ps_err_set(PS_ERR_PEER, "a PUSHED of a worker");
    if (!b->orders) PS_TRY(make_orders(b));
    return ps_coord_orders_pushed(b->orders, &from->id, c);
}

/* ---- all of them ---- */

static ps_err board_request(ps_coord_board *b, const ps_coord_asker *from,
                            const ps_control *c)
{
    switch (c->kind) {
    case PS_CONTROL_GATHER:
        return request_gather(b, from, c);
    case PS_CONTROL_PUT:
        return request_put(b, from, c);
    case PS_CONTROL_DROP:
        return request_drop(b, from, c);
    case PS_CONTROL_GET:
        return request_get(b, from, c);
    case PS_CONTROL_NORM:
        return from->role == PS_ROLE_SERVER
                   ? ps_coord_norms_request(&b->norms, &from->id, c)
                   : ps_err_set(PS_ERR_PEER, "a gradient norm of a worker");
    case PS_CONTROL_PUSHED:
        return request_pushed(b, from, c);
    default:
        return ps_err_set(PS_ERR_PROTOCOL, "%s is not a request",
                          ps_control_kind_name((int)c->kind));
    }
}

void ps_coord_board_request(ps_coord_board *b, const ps_coord_asker *from,
                            const ps_control *c)
{
    const ps_err err = board_request(b, from, c);
    if (err != PS_OK)
        ps_coord_answer_fail(b->answer, b->owner, &from->id, c->request, err);
}

/* "; worker 1 waits in "steq/5"": who of the missing asks for something else, or "". Who
 * is right, the coordinator cannot know. */
static void describe_strays(const ps_coord_board *b, const char *name, char *out,
                            size_t cap)
{
    size_t used = 0;
    out[0] = '\0';
    for (const waiter *w = b->waiters; w && used < cap; w = w->next)
        if (w->kind == PS_CONTROL_GATHER && strcmp(w->name, name) != 0)
            used +=
                (size_t)snprintf(out + used, cap - used, "; worker %d waits in \"%s\"",
                                 w->from.rank, w->name);
}

static ps_err timeout_error(ps_coord_board *b, const waiter *w)
{
    double seconds = (double)w->timeout_ms * 1e-3;
    if (w->kind == PS_CONTROL_GET)
        return ps_err_set(PS_ERR_TIMEOUT, "nobody has set \"%s\" within %.1f s", w->name,
                          seconds);
    char missing[256], strays[256];
    describe_strays(b, w->name, strays, sizeof strays);
    mark_present(b, w->name, b->scratch);
    ps_roster_missing_ranks(b->scratch, b->n_workers, missing, sizeof missing);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "%s \"%s\": not all workers have come within the %.1f s of worker "
                      "%d, missing: %s%s",
                      gather_word(w->n), w->name, seconds, w->from.rank, missing, strays);
}

ps_err ps_coord_board_expire(ps_coord_board *b)
{
    const ps_err_saved graced =
        ps_err_save(b->orders ? ps_coord_orders_expire(b->orders) : PS_OK);
    for (waiter **at = &b->waiters; *at;) {
        if (!ps_deadline_passed((*at)->deadline)) {
            at = &(*at)->next;
            continue;
        }
        ps_err err = timeout_error(b, *at);
        if ((*at)->kind != PS_CONTROL_GATHER) {
            board_fail(b, at, err);
            continue;
        }
        // A gather that one worker has given up cannot be completed any more. All its
        // waiters get the same answer now, while it is known which workers are missing.
        char name[PS_CONTROL_NAME_MAX];
        memcpy(name, (*at)->name, sizeof name);
        board_release(b, PS_CONTROL_GATHER, name, err, NULL, 0);
        at = &b->waiters;
    }
    return ps_err_restore(&graced);
}

ps_deadline ps_coord_board_next_deadline(const ps_coord_board *b)
{
    ps_deadline next = {UINT64_MAX};
    if (b->orders) next = ps_coord_orders_deadline(b->orders);
    for (const waiter *w = b->waiters; w; w = w->next)
        if (w->deadline.at_ns < next.at_ns) next = w->deadline;
    return next;
}
