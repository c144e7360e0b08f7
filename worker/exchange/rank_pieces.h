/* Large values from all ranks to rank 0, or from it to each, piece by piece through the
 * coordinator's store: for checkpoints, where no exchange has a path of its own. It keeps
 * a piece for each rank at a time. */
#ifndef PS_RANK_PIECES_H
#define PS_RANK_PIECES_H

#include "member.h"

typedef struct ps_rank_pieces {
    ps_member *member; // NULL: alone, nothing is to be done
    int rank, world_size;
    uint64_t timeout_ms; // for a piece
    /* By rank: bytes, the same on every rank; and memory, rank 0's of every rank, another
     * one's its own alone. Rank 0's own stays where it is. */
    const size_t *bytes;
    void *const *memory;
} ps_rank_pieces;

/* All ranks call it. Every rank's memory is copied to rank 0's for it. TIMEOUT, and what
 * else ends the job. */
ps_err ps_rank_pieces_gather(const ps_rank_pieces *p);
/* Rank 0's memory for each rank is copied to that one's. */
ps_err ps_rank_pieces_scatter(const ps_rank_pieces *p);

#endif
