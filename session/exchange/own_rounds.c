#include "own_rounds.h"

#include "local_steps.h"

/* After how many steps of a round the fragment is sent. */
static uint64_t sent_after(const ps_own_rounds *r, uint64_t fragment)
{
    return (fragment + 1) * r->steps / r->n_fragments;
}

static void own_rounds_begin(ps_own_rounds *r)
{
    r->in_round = r->next_fragment > 0 ? sent_after(r, r->next_fragment - 1) : r->begun;
}

void ps_own_rounds_init(ps_own_rounds *r, const ps_config *cfg, uint64_t first_step,
                        bool is_back, uint64_t next_fragment)
{
    *r = (ps_own_rounds){.on = ps_config_quorum(cfg),
                         .n_fragments = (uint32_t)cfg->sync.fragments,
                         .overlap = (uint64_t)cfg->sync.overlap,
                         .steps = (uint64_t)cfg->sync.local_steps,
                         .fresh = true,
                         .begun = is_back ? 0 : ps_local_steps_begun(cfg, first_step),
                         .next_fragment = is_back ? next_fragment : 0};
    own_rounds_begin(r);
}

void ps_own_rounds_set_steps(ps_own_rounds *r, uint64_t steps)
{
    r->steps = steps;
    if (r->fresh) own_rounds_begin(r);
}

void ps_own_rounds_step(ps_own_rounds *r)
{
    r->in_round++;
    r->fresh = false;
}

bool ps_own_rounds_sends(const ps_own_rounds *r, uint32_t fragment)
{
    return r->in_round == sent_after(r, fragment);
}

void ps_own_rounds_sent(ps_own_rounds *r)
{
    if (r->in_round < r->steps) return;
    r->in_round = 0;
    r->made++;
}

bool ps_own_rounds_has_sent(const ps_own_rounds *r, uint32_t fragment)
{
    return r->in_round >= sent_after(r, fragment);
}

bool ps_own_rounds_ends_here(const ps_own_rounds *r)
{
    return r->plan.round == r->made + 1 && r->plan.steps == r->in_round;
}

void ps_own_rounds_cut(ps_own_rounds *r)
{
    r->cut = (ps_round_cut){++r->made, r->in_round};
    r->plan = (ps_round_cut){0};
    r->in_round = 0;
}

void ps_own_rounds_rest(ps_own_rounds *r)
{
    r->in_round = r->overlap; // of a rank that has just come back, too
    r->fresh = false;
    r->made = 0;
}
