/* The calls of a member that wait for the coordinator's answer. */
#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "log.h"
#include "member_state.h"
#include "thread.h"

enum { ANSWER_GRACE_MS = 500 }; // for the coordinator's own answer to a timeout

uint64_t ps_member_closed(const ps_member *m)
{
    return m ? atomic_load(&m->closed) : 0;
}

static void remove_request(ps_member *m, const ps_member_request *r)
{
    ps_member_request **at = &m->requests;
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at) *at = r->next;
}

static void append_request(ps_member *m, ps_member_request *r)
{
    ps_member_request **at = &m->requests;
    while (*at)
        at = &(*at)->next;
    *at = r;
}

static uint64_t next_number(ps_member *m)
{
    pthread_mutex_lock(&m->lock);
    uint64_t number = ++m->last_number;
    pthread_mutex_unlock(&m->lock);
    return number;
}

/* Hands r to the control thread and waits for its answer. */
static ps_err member_exchange(ps_member *m, ps_member_request *r, ps_deadline deadline)
{
    pthread_mutex_lock(&m->lock);
    append_request(m, r);
    pthread_mutex_unlock(&m->lock);
    ps_event_set(&m->wake);
    pthread_mutex_lock(&m->lock);
    ps_err interrupted = PS_OK;
    while (!r->answered && !m->aborted && !m->deserted && interrupted == PS_OK &&
           !ps_deadline_passed(deadline)) {
        ps_cond_wait(&m->changed, &m->lock, ps_interrupt_slice(deadline));
        pthread_mutex_unlock(&m->lock);
        interrupted = ps_interrupt_ask_hook(); // which may abort the job
        pthread_mutex_lock(&m->lock);
    }
    remove_request(m, r);
    pthread_mutex_unlock(&m->lock);
    if (interrupted != PS_OK) return interrupted;
    if (r->answered) return r->code == PS_OK ? PS_OK : ps_err_set(r->code, "%s", r->text);
    PS_TRY(ps_member_check(m));
    uint64_t down_ns = atomic_load(&m->down_ns);
    if (down_ns == 0)
        return ps_err_set(PS_ERR_TIMEOUT, "the coordinator (%s) did not answer",
                          m->joined.coordinator_endpoint);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "the connection to the coordinator (%s) was lost %.1f s ago and "
                      "could not be made again",
                      m->joined.coordinator_endpoint,
                      (double)(ps_clock_awake_ns() - down_ns) * 1e-9);
}

/* Sends c and waits; *value (may be NULL) is owned by the caller. *answered (may be
 * NULL): whether the coordinator has answered, with DONE or FAIL. */
static ps_err member_call(ps_member *m, ps_control *c, ps_deadline deadline, void **value,
                          size_t *bytes, bool *answered)
{
    PS_TRY(ps_member_check(m));
    ps_member_request r = {.number = next_number(m)};
    c->nonce = m->joined.roster.nonce;
    c->request = r.number;
    ps_err err = ps_control_frame(&r.message, c);
    ps_deadline patience = deadline;
    const uint64_t grace_ns = ANSWER_GRACE_MS * UINT64_C(1000000);
    if (deadline.at_ns < UINT64_MAX - grace_ns) patience.at_ns += grace_ns;
    if (err == PS_OK) err = member_exchange(m, &r, patience);
    if (answered) *answered = r.answered;
    zmq_msg_close(&r.message);
    if (err == PS_OK && value) {
        *value = r.value;
        *bytes = r.bytes;
    } else {
        free(r.value);
    }
    return err;
}

static uint64_t left_ms(ps_deadline deadline)
{
    return (uint64_t)ps_deadline_left_ms(deadline);
}

ps_err ps_member_reduce(ps_member *m, const char *name, double *values, size_t n,
                        ps_deadline deadline)
{
    if (n > 65536) return ps_err_set(PS_ERR_ARG, "%s: more than 65,536 values", name);
    ps_control c = {
        .kind = PS_CONTROL_GATHER, .value = values, .bytes = n * sizeof *values};
    PS_TRY(ps_control_set_name(&c, name));
    c.timeout_ms = left_ms(deadline);
    void *sum;
    size_t bytes;
    PS_TRY(member_call(m, &c, deadline, &sum, &bytes, NULL));
    bool fits = bytes == n * sizeof *values;
    if (fits && n > 0) memcpy(values, sum, bytes);
    free(sum);
    return fits ? PS_OK : ps_err_set(PS_ERR_PROTOCOL, "%s: a sum of another size", name);
}

ps_err ps_member_barrier(ps_member *m, const char *name, ps_deadline deadline)
{
    return ps_member_reduce(m, name, NULL, 0, deadline);
}

ps_err ps_member_put(ps_member *m, const char *key, const void *value, size_t bytes,
                     ps_deadline deadline)
{
    if (bytes > PS_CONTROL_VALUE_MAX)
        return ps_err_set(PS_ERR_ARG, "%s: a value of more than %d bytes", key,
                          PS_CONTROL_VALUE_MAX);
    ps_control c = {.kind = PS_CONTROL_PUT, .value = value, .bytes = bytes};
    PS_TRY(ps_control_set_name(&c, key));
    return member_call(m, &c, deadline, NULL, NULL, NULL);
}

ps_err ps_member_get(ps_member *m, const char *key, void **value, size_t *bytes,
                     ps_deadline deadline)
{
    ps_control c = {.kind = PS_CONTROL_GET};
    PS_TRY(ps_control_set_name(&c, key));
    c.timeout_ms = left_ms(deadline);
    return member_call(m, &c, deadline, value, bytes, NULL);
}

ps_err ps_member_leave(ps_member *m, ps_deadline deadline)
{
    ps_control c = {.kind = PS_CONTROL_LEAVE};
    c.timeout_ms = left_ms(deadline);
    PS_TRY(ps_member_check(m));
    atomic_store(&m->leaving, true);
    bool answered = false;
    ps_err err = member_call(m, &c, deadline, NULL, NULL, &answered);
    // A member that leaves has done its work: a lost answer does not undo it.
    if (err == PS_ERR_TIMEOUT && !answered)
        PS_WARN("leaving", "reason=\"%s\" note=\"all was done before\"",
                ps_err_message());
    else if (err != PS_OK)
        return err;
    pthread_mutex_lock(&m->lock);
    m->left = true;
    pthread_mutex_unlock(&m->lock);
    ps_event_set(&m->wake); // the thread says BYE, so that nobody waits while this
                            // process cleans up
    return PS_OK;
}

ps_err ps_member_wait_end(ps_member *m)
{
    const ps_deadline never = {UINT64_MAX};
    pthread_mutex_lock(&m->lock);
    while (!m->ended && !m->aborted)
        ps_cond_wait(&m->changed, &m->lock, never);
    bool ended = m->ended;
    pthread_mutex_unlock(&m->lock);
    return ended ? PS_OK : ps_member_check(m);
}
