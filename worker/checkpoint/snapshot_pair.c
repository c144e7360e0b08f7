#include "snapshot_pair.h"

void ps_snapshot_pair_fini(ps_snapshot_pair *p)
{
    for (int i = 0; i < 2; i++)
        ps_snapshot_fini(&p->of[i]);
    *p = (ps_snapshot_pair){0};
}

static int snapshot_pair_newest(const ps_snapshot_pair *p, bool all)
{
    int best = -1;
    for (int i = 0; i < 2; i++)
        if (p->is[i].whole && (p->is[i].all || !all) &&
            (best < 0 || p->of[i].trainer.step > p->of[best].trainer.step))
            best = i;
    return best;
}

const ps_snapshot *ps_snapshot_pair_newest(const ps_snapshot_pair *p)
{
    const int i = snapshot_pair_newest(p, true);
    return i < 0 ? NULL : &p->of[i];
}

const ps_snapshot *ps_snapshot_pair_of_step(const ps_snapshot_pair *p, uint64_t step)
{
    for (int i = 0; i < 2; i++)
        if (p->is[i].whole && p->of[i].trainer.step == step) return &p->of[i];
    return NULL;
}

/* Only what ranks have of their own depends on them. */
static bool snapshot_pair_fits(const ps_snapshot_pair *p, int i,
                               const ps_snapshot_shape *shape, int rank, bool all)
{
    return p->is[i].made && p->is[i].all == all &&
           ((!shape->feedback && !shape->local) ||
            (p->is[i].rank == rank && p->of[i].n_ranks == shape->n_ranks));
}

static ps_err snapshot_pair_make(ps_snapshot_pair *p, int i,
                                 const ps_snapshot_shape *shape, int rank, bool all)
{
    if (snapshot_pair_fits(p, i, shape, rank, all)) {
        p->of[i].n_ranks = shape->n_ranks;
        return PS_OK;
    }
    ps_snapshot_fini(&p->of[i]);
    p->is[i].made = false;
    ps_err err = ps_snapshot_init(&p->of[i], shape, rank, all);
    if (err != PS_OK) {
        ps_snapshot_fini(&p->of[i]);
        return err;
    }
    p->is[i].made = true;
    p->is[i].rank = rank;
    p->is[i].all = all;
    return PS_OK;
}

ps_err ps_snapshot_pair_reserve(ps_snapshot_pair *p, const ps_snapshot_shape *shape,
                                int rank, int n)
{
    for (int i = 0; i < n; i++)
        if (!p->is[i].whole) PS_TRY(snapshot_pair_make(p, i, shape, rank, true));
    return PS_OK;
}

ps_err ps_snapshot_pair_begin(ps_snapshot_pair *p, const ps_snapshot_shape *shape,
                              int rank, bool all, bool keep, ps_snapshot **out)
{
    const int best = snapshot_pair_newest(p, false), i = best < 0 ? 0
                                                         : keep   ? 1 - best
                                                                  : best;
    p->is[i].whole = false;
    p->filling = i;
    *out = &p->of[i];
    return snapshot_pair_make(p, i, shape, rank, all);
}

void ps_snapshot_pair_commit(ps_snapshot_pair *p)
{
    p->is[p->filling].whole = true;
}

void ps_snapshot_pair_forget_after(ps_snapshot_pair *p, uint64_t step)
{
    for (int i = 0; i < 2; i++)
        if (p->of[i].trainer.step > step) p->is[i].whole = false;
}
