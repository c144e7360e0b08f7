/* A link in shared memory. Each worker has a board, which the others of its host map:
 *
 *   asleep   u32   its thread has to be woken
 *   bell           where a thread of the program sleeps that waits for a transfer
 *   rings          one for each worker of the job that is on this host, in rank order:
 *                  what the owner of the board sends it
 *
 *   tail     u64   pieces ever put: the owner's
 *   head     u64   pieces ever taken: the reader's
 *   pieces         their heads (link.h), in order; `slot`: where the bytes are
 *   slots          the bytes; the owner chooses
 *
 * Neither end trusts the other. Each keeps its own position to itself and only shows it.
 * The other's is checked against the bounds, and a piece's head is copied out before it
 * is looked at. The bytes are used where they are: they are only numbers. */
#ifndef PS_LINK_SHM_H
#define PS_LINK_SHM_H

#include <stdatomic.h>

#include "bell.h"
#include "event.h"
#include "link.h"

typedef struct ps_link_board ps_link_board;

uint64_t ps_link_board_bytes(int n_here);
/* Of a board: its owner's thread has to be woken. */
_Atomic uint32_t *ps_link_board_asleep(ps_link_board *board);
/* `wanted`: 1, it has to be rung. */
ps_bell *ps_link_board_bell(ps_link_board *board);

typedef struct ps_link_shm_options {
    int rank;                   // the other worker's
    int n_here;                 // workers of this host
    ps_link_board *own, *other; // borrowed
    int own_place, other_place; // of the two, among those of this host
    ps_event wake;              // the other's; taken
} ps_link_shm_options;

ps_err ps_link_shm_create(const ps_link_shm_options *o, ps_link **out);

#endif
