#include "two_levels.h"

#include <stdlib.h>

#include "device_sums.h"
#include "interrupt.h"
#include "log.h"
#include "shm_peers.h"

static int count_hosts(const ps_roster *roster)
{
    int n = 0;
    for (int r = 0; r < roster->n_workers; r++)
        n += ps_roster_leader(roster, r) == r;
    return n;
}

static void log_order(const ps_exchange_options *o)
{
    const ps_roster *roster = ps_member_roster(o->member);
    if (o->rank == 0)
        PS_INFO("levels",
                "levels=2 workers=%d hosts=%d note=\"sums are taken host by host: other "
                "last bits than with exchange.levels 1\"",
                o->world_size, count_hosts(roster));
}

static ps_err list_workers(ps_levels *l)
{
    const ps_roster *roster = ps_member_roster(l->o.member);
    const size_t most = (size_t)l->o.world_size;
    const int leader = ps_roster_leader(roster, l->o.rank);
    PS_TRY(PS_NEW(&l->ranks, most, "the host's workers"));
    PS_TRY(PS_NEW(&l->boards, most, "the host's workers"));
    for (int r = 0; r < l->o.world_size; r++) {
        if (ps_roster_leader(roster, r) != leader) continue;
        if (r == l->o.rank) l->own = l->n;
        l->boards[l->n] = ps_shm_peers_board(l->peers, r);
        l->ranks[l->n++] = r;
    }
    // The thread that sums is one more.
    const int64_t threads = l->o.settings.threads;
    l->spin_ns =
        ps_roster_spin_ns(roster, &roster->workers[l->o.rank], threads ? threads + 1 : 0);
    return PS_OK;
}

ps_err ps_levels_open(const ps_exchange_options *options, ps_levels **out)
{
    ps_shm_peers *peers;
    *out = NULL;
    log_order(options);
    PS_TRY(ps_shm_peers_open_host(
        options, ps_shm_board_bytes(PS_LEVELS_KINDS * (int)options->plan->n_chunks),
        &peers));
    if (!peers) return PS_OK;
    ps_levels *l;
    ps_err err = PS_NEW(&l, 1, "the host's workers");
    if (err != PS_OK) {
        ps_shm_peers_close(&peers);
        return err;
    }
    l->o = *options;
    l->peers = peers;
    err = list_workers(l);
    if (err == PS_OK)
        *out = l;
    else
        ps_levels_close(&l);
    return err;
}

void ps_levels_close(ps_levels **pointer)
{
    ps_levels *l = *pointer;
    if (!l) return;
    if (l->sums) l->sums->ops->part(l->sums);
    ps_shm_peers_close(&l->peers);
    free(l->ranks);
    free(l->boards);
    free(l);
    *pointer = NULL;
}

float *ps_levels_sums_arena(const ps_levels *l)
{
    return ps_levels_leads(l) ? l->o.grads->base
                              : ps_shm_peers_grads(l->peers, l->ranks[0]);
}

float *ps_levels_weights_arena(const ps_levels *l)
{
    return ps_levels_leads(l) ? l->o.params->base
                              : ps_shm_peers_params(l->peers, l->ranks[0]);
}

void ps_levels_post(ps_levels *l, _Atomic uint64_t *count)
{
    atomic_fetch_add(&l->boards[l->own]->offered, 1);
    ps_shm_board_post(l->boards, l->n, l->own, count);
    ps_levels_wake_own(l);
}

void ps_levels_wake_own(ps_levels *l)
{
    ps_shm_board *own = l->boards[l->own];
    const uint32_t wanted = (uint32_t)l->own + 1;
    if (atomic_load(&own->bell.wanted) == wanted) ps_bell_ring(&own->bell);
    if (atomic_load(&own->beside.wanted) == wanted) ps_bell_ring(&own->beside);
}

static void note_progress(ps_levels_wait *w)
{
    w->progress = atomic_load(&w->levels->boards[w->place]->offered);
    w->deadline = ps_deadline_in_ms(w->timeout_ms);
}

ps_err ps_levels_late(const ps_levels_wait *w)
{
    return ps_err_set(PS_ERR_TIMEOUT,
                      "worker %d of this host has given no %s for %lld ms "
                      "(net.step_timeout_ms)",
                      w->levels->ranks[w->place], w->what, (long long)w->timeout_ms);
}

static ps_err two_levels_check(void *ctx)
{
    ps_levels_wait *w = ctx;
    const ps_levels *l = w->levels;
    if (w->also) PS_TRY(w->also(w->ctx));
    PS_TRY(ps_member_check(l->o.member));
    PS_TRY(ps_interrupt_ask_hook());
    if (w->timeout_ms == 0) return PS_OK;
    if (w->progress != atomic_load(&l->boards[w->place]->offered)) note_progress(w);
    return ps_deadline_passed(w->deadline) ? ps_levels_late(w) : PS_OK;
}

ps_err ps_levels_await(ps_levels_wait *w, const _Atomic uint64_t *count, uint64_t target)
{
    ps_levels *l = w->levels;
    if (atomic_load(count) >= target) return PS_OK;
    note_progress(w);
    ps_shm_board *own = l->boards[l->own];
    return ps_shm_board_wait(w->beside ? &own->beside : &own->bell, w->place, count,
                             target, l->spin_ns, two_levels_check, w);
}
