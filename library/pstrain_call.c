#include <unistd.h>

#include "interrupt.h"
#include "pstrain_state.h"

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
    const ps_err err = ps_life_expect(&s->life, stages, call);
    if (err != PS_OK) {
        atomic_store(&s->busy[lane], false);
        return err;
    }
    ps_interrupt_set_hook(call_asks, s);
    return PS_OK;
}

int pstrain_leave(pstrain_session *s, pstrain_lane lane, ps_err err)
{
    ps_interrupt_set_hook(NULL, NULL);
    // A wait that ended because of an abort gives its reason.
    if (err == PS_ERR_INTERRUPTED && atomic_load(&s->aborted))
        err = s->member ? ps_member_check(s->member)
                        : ps_err_set(PS_ERR_PEER, "the job was aborted");
    if (err != PS_OK && err != PS_ERR_ARG) ps_life_fail(&s->life, err);
    atomic_store(&s->busy[lane], false);
    return (int)err;
}

ps_deadline pstrain_step_deadline(pstrain_session *s)
{
    pthread_mutex_lock(&s->lock);
    const ps_deadline deadline = ps_config_step_deadline(pstrain_config(s));
    pthread_mutex_unlock(&s->lock);
    return deadline;
}

const ps_config *pstrain_config(const pstrain_session *s)
{
    return s->full ? s->full : &s->config;
}
