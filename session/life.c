#include "life.h"

void ps_life_init(ps_life *l)
{
    atomic_init(&l->stage, PS_STAGE_CREATED);
    pthread_mutex_init(&l->lock, NULL);
}

void ps_life_fini(ps_life *l)
{
    pthread_mutex_destroy(&l->lock);
}

static const struct {
    const char *early, *late; // of a call that comes before, or after its time
} life_texts[] = {
    [PS_STAGE_CREATED] = {"has not joined yet (pstrain_join)", ""},
    [PS_STAGE_JOINED] = {"has no tensors yet (pstrain_open)", "has joined already"},
    [PS_STAGE_OPEN] = {"was not started yet (pstrain_start)", "is open already"},
    [PS_STAGE_STARTED] = {"was already started", "was already started"},
    [PS_STAGE_STOPPED] = {"was stopped", "was stopped"},
    [PS_STAGE_CLOSED] = {"is closed", "is closed"},
};

ps_err ps_life_expect(const ps_life *l, unsigned stages, const char *call)
{
    const ps_stage stage = ps_life_stage(l);
    if (stages & 1u << stage) return PS_OK;
    if (stage == PS_STAGE_FAILED)
        return ps_err_set(PS_ERR_ARG, "%s: the session has failed before: %.700s", call,
                          l->failure.message);
    const bool late = stages < 1u << stage;
    return ps_err_set(PS_ERR_ARG, "%s: the session %s", call,
                      late ? life_texts[stage].late : life_texts[stage].early);
}

void ps_life_reach(ps_life *l, ps_stage stage)
{
    pthread_mutex_lock(&l->lock);
    if (ps_life_stage(l) != PS_STAGE_FAILED) atomic_store(&l->stage, (int)stage);
    pthread_mutex_unlock(&l->lock);
}

void ps_life_fail(ps_life *l, ps_err err)
{
    const ps_err_saved failure = ps_err_save(err);
    pthread_mutex_lock(&l->lock);
    if (ps_life_stage(l) != PS_STAGE_FAILED) {
        l->failure = failure;
        atomic_store(&l->stage, PS_STAGE_FAILED);
    }
    pthread_mutex_unlock(&l->lock);
}
