#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "interrupt.h"
#include "pstrain_state.h"

pstrain_stage pstrain_stage_of(const pstrain_session *s)
{
    return (pstrain_stage)atomic_load(&s->stage);
}

static const char *stage_text(pstrain_stage stage)
{
    static const char *const texts[] = {
        [PSTRAIN_CREATED] = "the session has not joined yet (pstrain_join)",
        [PSTRAIN_JOINED] = "the session has no tensors yet (pstrain_open)",
        [PSTRAIN_OPEN] = "the session was not started yet (pstrain_start)",
        [PSTRAIN_STARTED] = "the session was already started",
        [PSTRAIN_CLOSED] = "the session is closed",
        [PSTRAIN_FAILED] = "the session has failed",
    };
    return texts[stage];
}

/* A call that comes too late is told what has happened "already". */
static ps_err wrong_stage(const pstrain_session *s, pstrain_stage stage, unsigned stages,
                          const char *call)
{
    static const char *const already[] = {[PSTRAIN_JOINED] = "the session has joined "
                                                             "already",
                                          [PSTRAIN_OPEN] = "the session is open already"};
    if (stage == PSTRAIN_FAILED)
        return ps_err_set(PS_ERR_ARG, "%s: the session has failed before: %.700s", call,
                          s->failure.message);
    const bool late = stages < 1u << stage;
    const bool known = late && (stage == PSTRAIN_JOINED || stage == PSTRAIN_OPEN);
    return ps_err_set(PS_ERR_ARG, "%s: %s", call,
                      known ? already[stage] : stage_text(stage));
}

static bool call_asks(void *session)
{
    const pstrain_session *s = session;
    if (atomic_load(&s->aborted)) return true;
    return s->interrupted && s->interrupted(s->interrupted_ctx) != 0;
}

ps_err pstrain_enter(pstrain_session *s, pstrain_lane lane, unsigned stages,
                     const char *call)
{
    if (!s) return ps_err_set(PS_ERR_ARG, "%s: the session is NULL", call);
    if (getpid() != s->pid)
        return ps_err_set(PS_ERR_ARG,
                          "%s: the session belongs to the process that made it; after "
                          "fork() make another one",
                          call);
    if (atomic_exchange(&s->busy[lane], true))
        return ps_err_set(PS_ERR_ARG, "%s: another thread is in a call of this session",
                          call);
    const pstrain_stage stage = pstrain_stage_of(s);
    if (!(stages & 1u << stage)) {
        atomic_store(&s->busy[lane], false);
        return wrong_stage(s, stage, stages, call);
    }
    ps_interrupt_set_hook(call_asks, s);
    return PS_OK;
}

static void note_failure(pstrain_session *s, ps_err err)
{
    const ps_err_saved failure = ps_err_save(err);
    pthread_mutex_lock(&s->lock);
    if (pstrain_stage_of(s) != PSTRAIN_FAILED) {
        s->failure = failure;
        atomic_store(&s->stage, PSTRAIN_FAILED);
    }
    pthread_mutex_unlock(&s->lock);
}

int pstrain_leave(pstrain_session *s, pstrain_lane lane, ps_err err)
{
    ps_interrupt_set_hook(NULL, NULL);
    // A wait that ended because of an abort gives its reason.
    if (err == PS_ERR_INTERRUPTED && atomic_load(&s->aborted))
        err = s->member ? ps_member_check(s->member)
                        : ps_err_set(PS_ERR_PEER, "the job was aborted");
    if (err != PS_OK && err != PS_ERR_ARG) note_failure(s, err);
    atomic_store(&s->busy[lane], false);
    return (int)err;
}

static const ps_config_net *net_of(const pstrain_session *s)
{
    return s->full ? &s->full->net : &s->config.net;
}

ps_deadline pstrain_join_deadline(const pstrain_session *s)
{
    return ps_deadline_in_ms((uint64_t)net_of(s)->join_timeout_ms);
}

ps_deadline pstrain_step_deadline(const pstrain_session *s)
{
    return ps_deadline_in_ms((uint64_t)net_of(s)->step_timeout_ms);
}
