#include <pthread.h>

#include "check.h"
#include "shm_board.h"

enum { N_RANKS = 3, ROUNDS = 2000 };

static ps_shm_board *boards[N_RANKS];
static uint64_t spin_ns;

static int make_boards(void **state)
{
    for (int r = 0; r < N_RANKS; r++)
        if (!(boards[r] = calloc(1, ps_shm_board_bytes(4)))) return -1;
    return 0;
}

static int free_boards(void **state)
{
    for (int r = 0; r < N_RANKS; r++)
        free(boards[r]);
    return 0;
}

/* Ends a wait after *ctx questions. */
static ps_err until_asked(void *ctx)
{
    int *left = ctx;
    return --*left > 0 ? PS_OK : ps_err_set(PS_ERR_TIMEOUT, "enough");
}

/* arg is the rank. It posts, and waits for both others, round after round. */
static void *rank_main(void *arg)
{
    const int rank = (int)(intptr_t)arg;
    intptr_t failures = 0;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        ps_shm_board_post(boards, N_RANKS, rank, &boards[rank]->rounds);
        for (int k = 1; k < N_RANKS; k++) {
            const int peer = (rank + k) % N_RANKS;
            int patience = 1000;
            failures +=
                ps_shm_board_wait(&boards[rank]->bell, peer, &boards[peer]->rounds, round,
                                  spin_ns, until_asked, &patience) != PS_OK;
            // no rank is more than a round ahead of those that it waits for
            failures += atomic_load(&boards[peer]->rounds) > round + 1;
        }
    }
    return (void *)failures;
}

TEST_WITH(test_ranks_keep_in_step, make_boards, free_boards)
{
    pthread_t threads[N_RANKS];
    for (spin_ns = 0; spin_ns <= 20000; spin_ns += 20000) {
        for (int r = 0; r < N_RANKS; r++)
            atomic_store(&boards[r]->rounds, 0);
        for (int r = 0; r < N_RANKS; r++)
            assert_int_equal(
                pthread_create(&threads[r], NULL, rank_main, (void *)(intptr_t)r), 0);
        for (int r = 0; r < N_RANKS; r++) {
            void *failures;
            pthread_join(threads[r], &failures);
            assert_null(failures);
        }
    }
}

TEST_WITH(test_the_check_ends_a_wait, make_boards, free_boards)
{
    int patience = 2;
    assert_int_equal(ps_shm_board_wait(&boards[0]->bell, 1, &boards[1]->shared[3], 1, 0,
                                       until_asked, &patience),
                     PS_ERR_TIMEOUT);
    assert_int_equal(patience, 0);
    assert_int_equal(atomic_load(&boards[0]->bell.wanted), 0);
}

TEST_WITH(test_what_is_there_is_not_waited_for, make_boards, free_boards)
{
    int patience = 1;
    ps_shm_board_post(boards, N_RANKS, 1, &boards[1]->shared[3]);
    assert_ok(ps_shm_board_wait(&boards[0]->bell, 1, &boards[1]->shared[3], 1, 0,
                                until_asked, &patience));
    assert_int_equal(patience, 1);
}

TEST_WITH(test_only_who_is_waited_for_rings, make_boards, free_boards)
{
    atomic_store(&boards[0]->bell.wanted, 1 + 1);
    ps_shm_board_post(boards, N_RANKS, 2, &boards[2]->offered);
    assert_int_equal(ps_bell_sequence(&boards[0]->bell), 0);
    ps_shm_board_post(boards, N_RANKS, 1, &boards[1]->offered);
    assert_int_equal(ps_bell_sequence(&boards[0]->bell), 1);
    assert_int_equal(ps_bell_sequence(&boards[0]->beside), 0);
    atomic_store(&boards[0]->beside.wanted, 2 + 1);
    ps_shm_board_post(boards, N_RANKS, 2, &boards[2]->offered);
    assert_int_equal(ps_bell_sequence(&boards[0]->beside), 1);
    assert_int_equal(ps_bell_sequence(&boards[0]->bell), 1);
}
