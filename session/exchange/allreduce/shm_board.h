/* What a worker tells the others of its host in all-reduce mode, and with exchange.levels
 * 2 (two_levels.h says what the counts mean there): one rank writes its
 * board and all read it. Counters never fall, so that a reader who comes late misses
 * nothing. What the counters allow to be read is written before them.
 *
 * The ranks trust each other as little as they must: a wrong count makes a wrong sum or a
 * wait that ends at its deadline, as wrong gradients would. No count is used as an index.
 */
#ifndef PS_SHM_BOARD_H
#define PS_SHM_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

#include "bell.h"
#include "err.h"

enum { PS_SHM_BOARD_PIECE = 64 << 10 };

typedef struct ps_shm_board { // all zero at the start
    /* The rank sleeps; the one it waits for rings it. `wanted` of the bell is that rank
     * + 1, 0: it is awake. */
    ps_bell bell;
    ps_bell beside; // of a second thread of the rank that waits (two_levels.h)
    _Alignas(64) _Atomic uint64_t offered; // buckets whose gradients are final
    _Alignas(64) _Atomic uint64_t rounds;  // pieces that it has put
    _Alignas(64) uint8_t pieces[2][PS_SHM_BOARD_PIECE]; // in turn
    _Atomic uint32_t scale_bits;  // of a leader (two_levels.h): the newest loss scale
    _Atomic uint32_t steps_of[2]; // the same, by step % 2: whose step it is (plan.h)
    _Atomic uint64_t shared[];    // of each bucket: how often its part has new weights
} ps_shm_board;

uint64_t ps_shm_board_bytes(int n_buckets_max);

/* The rank's own: raises a count, and wakes the ranks that wait for this one. boards (n):
 * of all ranks. */
void ps_shm_board_post(ps_shm_board *const *boards, int n, int rank,
                       _Atomic uint64_t *count);

/* Asked now and then while a wait goes on; an error ends it. */
typedef ps_err ps_shm_board_check(void *ctx);

/* Blocks the thread until a count of a peer's board has reached the target. bell: of the
 * own board, for that thread alone. spin_ns: how long it looks before it sleeps. Only the
 * check ends a wait that takes too long. */
ps_err ps_shm_board_wait(ps_bell *bell, int peer, const _Atomic uint64_t *count,
                         uint64_t target, uint64_t spin_ns, ps_shm_board_check *check,
                         void *ctx);

#endif
