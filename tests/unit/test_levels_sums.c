/* The thread that adds up a host's gradients. A stand-in for its waits holds it where a
 * busy machine may. */
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>

#include "check.h"
#include "levels_sums.h"
#include "shm_peers.h"

enum { CHUNKS = 2, EACH = 3, COUNT = CHUNKS * EACH, WORKERS = 2 };

static float arenas[WORKERS][COUNT]; // gradients; the leader's becomes the sum
static uint64_t hold_at, idle_at;    // targets of the thread's waits for its own worker
static sem_t held, go_on, idle;

ps_err __wrap_ps_levels_await(ps_levels_wait *w, const _Atomic uint64_t *count,
                              uint64_t target);
float *__wrap_ps_shm_peers_grads(const ps_shm_peers *p, int rank);

ps_err __wrap_ps_levels_await(ps_levels_wait *w, const _Atomic uint64_t *count,
                              uint64_t target)
{
    const bool own = w->beside && w->place == w->levels->own;
    if (own && target == idle_at) sem_post(&idle);
    while (atomic_load(count) < target) {
        if (w->also) PS_TRY(w->also(w->ctx));
        sched_yield();
    }
    if (own && target == hold_at) {
        sem_post(&held);
        sem_wait(&go_on);
    }
    return PS_OK;
}

float *__wrap_ps_shm_peers_grads(const ps_shm_peers *p, int rank)
{
    (void)p;
    return arenas[rank];
}

static void new_gradients(int step)
{
    for (int r = 0; r < WORKERS; r++)
        for (int i = 0; i < COUNT; i++)
            arenas[r][i] = (float)(100 * step + 10 * r + i);
}

static uint64_t sums_of(const ps_levels *l, uint32_t chunk)
{
    return atomic_load(ps_levels_count(l, l->own, PS_LEVELS_SUMS, chunk));
}

static void assert_sum(int step)
{
    for (int i = EACH; i < COUNT; i++)
        assert_float_equal(arenas[0][i], (float)(200 * step + 10 + 2 * i), 0);
}

/* Worker 1 adds chunk 1. Its gradients become final in another order in the next step,
 * before its thread has looked at the last one of this step. */
TEST(each_step_adds_a_chunk_once_in_any_order)
{
    ps_chunk chunks[CHUNKS] = {{.offset = 0, .count = EACH},
                               {.offset = EACH, .count = EACH}};
    const ps_plan plan = {.n_chunks = CHUNKS, .chunks = chunks};
    const ps_step_rule rule = {.refuses = false};
    const ps_shared_mem grads = {.base = arenas[1]};
    ps_shm_board *boards[WORKERS];
    ps_levels l = {.o = {.plan = &plan, .rule = &rule, .grads = &grads},
                   .n = WORKERS,
                   .own = 1,
                   .ranks = (int[]){0, 1},
                   .boards = boards};
    ps_levels_sums *sums;
    for (int r = 0; r < WORKERS; r++) {
        const size_t bytes = ps_shm_board_bytes(PS_LEVELS_KINDS * CHUNKS);
        boards[r] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        assert_non_null(boards[r]);
        memset(boards[r], 0, bytes);
    }
    hold_at = CHUNKS;         // the second chunk of step 0 is there
    idle_at = 2 * CHUNKS + 1; // it waits for step 2
    sem_init(&held, 0, 0);
    sem_init(&go_on, 0, 0);
    sem_init(&idle, 0, 0);
    new_gradients(0);
    assert_ok(ps_levels_sums_create(&l, &(ps_levels_sums_hooks){0}, &sums));
    for (uint32_t c = 0; c < CHUNKS; c++)
        atomic_fetch_add(ps_levels_count(&l, 0, PS_LEVELS_GRADIENTS, c), 1);
    ps_levels_sums_give(sums, (uint32_t[]){1, 0}, CHUNKS);
    sem_wait(&held);
    assert_int_equal(sums_of(&l, 1), 1);
    assert_sum(0);

    new_gradients(1);
    for (uint32_t c = 0; c < CHUNKS; c++)
        atomic_fetch_add(ps_levels_count(&l, 0, PS_LEVELS_GRADIENTS, c), 1);
    ps_levels_sums_give(sums, (uint32_t[]){0, 1}, CHUNKS);
    sem_post(&go_on);
    sem_wait(&idle);
    assert_int_equal(sums_of(&l, 1), 2);
    assert_int_equal(sums_of(&l, 0), 0);
    assert_sum(1);
    ps_levels_sums_destroy(&sums);
    for (int r = 0; r < WORKERS; r++)
        free(boards[r]);
}
