#include "shm_board.h"

#include <sched.h>
#include <stddef.h>

#include "clock.h"

enum { SLEEP_MS = 50 };

uint64_t ps_shm_board_bytes(int n_buckets_max)
{
    return offsetof(ps_shm_board, shared) + (uint64_t)n_buckets_max * sizeof(uint64_t);
}

static void shm_board_ring(ps_bell *bell, int rank)
{
    if (atomic_load(&bell->wanted) == (uint32_t)rank + 1) ps_bell_ring(bell);
}

void ps_shm_board_post(ps_shm_board *const *boards, int n, int rank,
                       _Atomic uint64_t *count)
{
    atomic_fetch_add(count, 1);
    for (int r = 0; r < n; r++) {
        if (r == rank) continue;
        shm_board_ring(&boards[r]->bell, rank);
        shm_board_ring(&boards[r]->beside, rank);
    }
}

static bool shm_board_reached(const _Atomic uint64_t *count, uint64_t target)
{
    return atomic_load(count) >= target;
}

/* Gives the core away between looks: somebody else may need it to get there. */
static bool shm_board_spin(const _Atomic uint64_t *count, uint64_t target,
                           uint64_t spin_ns)
{
    if (shm_board_reached(count, target)) return true;
    for (const uint64_t end_ns = ps_clock_ns() + spin_ns; ps_clock_ns() < end_ns;) {
        if (shm_board_reached(count, target)) return true;
        sched_yield();
    }
    return false;
}

ps_err ps_shm_board_wait(ps_bell *bell, int peer, const _Atomic uint64_t *count,
                         uint64_t target, uint64_t spin_ns, ps_shm_board_check *check,
                         void *ctx)
{
    ps_err err = PS_OK;
    if (shm_board_spin(count, target, spin_ns)) return PS_OK;
    atomic_store(&bell->wanted, (uint32_t)peer + 1);
    for (;;) {
        const uint32_t sequence = ps_bell_sequence(bell);
        if (shm_board_reached(count, target)) break;
        err = check(ctx);
        if (err != PS_OK) break;
        ps_bell_sleep(bell, sequence, SLEEP_MS);
    }
    atomic_store(&bell->wanted, 0);
    return err;
}
