#include <string.h>

#include "exchange_local_state.h"
#include "local_memory.h"
#include "local_steps.h"

/* Points the optimizer's state to the arenas that follow the weights. */
static ps_exchange_state inner_state(const ps_exchange_local *e, void *local)
{
    ps_exchange_state s = {0};
    for (int i = 0; i < e->rule.optimizer.n_states; i++)
        s.states[i] = ps_local_memory_arena(e->o.table, local, 1 + i);
    return s;
}

static ps_err save_own(ps_exchange_local *e, void *local)
{
    const ps_optimizer *inner = &e->rule.optimizer;
    ps_local_end end = {.n_parts = e->n_fragments};
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        const ps_local_fragment *f = &e->fragments[i];
        end.parts[i] = (ps_local_part){f->samples, f->all_samples, f->awaited};
    }
    ps_exchange_state s = inner_state(e, local);
    memcpy(local, ps_exchange_local_weights(e), e->o.params->bytes);
    PS_TRY(ps_exchange_save(e->steps, &s));
    end.rule_bytes = s.rule_bytes;
    memcpy(end.rule, s.rule, s.rule_bytes);
    memcpy(ps_local_memory_end(e->o.table, inner, local), &end, sizeof end);
    return PS_OK;
}

/* The rule is rank 0's inner one. */
ps_err ps_exchange_local_save(ps_exchange *x, ps_exchange_state *out)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    ps_local_end end;
    PS_TRY(ps_exchange_local_drain(x));
    PS_TRY(ps_exchange_save(e->outer, out));
    PS_TRY(save_own(e, out->local));
    memcpy(&end, ps_local_memory_end(e->o.table, &e->rule.optimizer, out->local),
           sizeof end);
    out->rule_bytes = end.rule_bytes;
    memcpy(out->rule, end.rule, end.rule_bytes);
    ps_exchange_local_show_anchor(e);
    return PS_OK;
}

/* A change that is awaited has arrived in the anchor: no version of it is awaited. */
static void load_parts(ps_exchange_local *e, const ps_local_end *end)
{
    for (uint32_t i = 0; i < e->n_fragments; i++) {
        ps_local_fragment *f = &e->fragments[i];
        f->samples = end->parts[i].samples;
        f->all_samples = end->parts[i].all_samples;
        f->awaited = f->mixes = end->parts[i].awaited;
    }
}

/* The inner optimizer's next step is its first one. */
static void begin_anew(ps_exchange_local *e)
{
    e->rule.scale.skipped =
        e->o.first_step + ps_local_steps_begun(e->o.config, e->o.first_step);
}

static ps_err load_own(ps_exchange_local *e, const ps_exchange_state *in)
{
    ps_local_end end;
    memcpy(&end, ps_local_memory_end(e->o.table, &e->rule.optimizer, in->local),
           sizeof end);
    if (end.rule_bytes > sizeof end.rule || end.n_parts != e->n_fragments)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "the state of a worker's own steps is damaged");
    if (end.rule_bytes > 0)
        PS_TRY(ps_step_rule_load(&e->rule, end.rule, end.rule_bytes));
    else
        begin_anew(e);
    load_parts(e, &end);
    e->resumed = in->local;
    return PS_OK;
}

/* Until the first synchronisation the outer exchange is as in a new job: there is nothing
 * to load. A rank without a state of its own begins anew, from the anchor. */
ps_err ps_exchange_local_load(ps_exchange *x, const ps_exchange_state *in)
{
    ps_exchange_local *e = ps_exchange_local_of(x);
    if (in->local) PS_TRY(load_own(e, in));
    if (!in->local) begin_anew(e);
    if (e->outer_options.first_step > 0 || e->outer_options.ahead > 0)
        PS_TRY(ps_exchange_load(e->outer, in));
    PS_TRY(ps_exchange_local_make_steps(e));
    if (!in->local) return PS_OK;
    const ps_exchange_state own = inner_state(e, in->local);
    return ps_exchange_load(e->steps, &own);
}
