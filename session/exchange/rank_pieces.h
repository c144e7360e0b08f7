/* Sends large values from all ranks to rank 0, or from rank 0 to each, piece by piece
 * through the coordinator's store. For checkpoints, when the exchange has no path of its
 * own. The store keeps one piece per rank at a time. */
#ifndef PS_RANK_PIECES_H
#define PS_RANK_PIECES_H

#include "member.h"

typedef struct ps_rank_pieces {
    ps_member *member; // NULL: alone, both calls do nothing
    int rank, world_size;
    int holder;          // gathers beside rank 0, the same on every rank; 0: none does
    uint64_t timeout_ms; // for a piece
    /* By rank. bytes: the same on every rank. memory: rank 0 and the holder have one for
     * every rank, another rank only its own, which is not copied. */
    const size_t *bytes;
    void *const *memory;
} ps_rank_pieces;

/* Copies every rank's memory to rank 0's memory for that rank, and to the holder's. All
 * ranks call it. TIMEOUT, or the error that ends the job. */
ps_err ps_rank_pieces_gather(const ps_rank_pieces *p);
/* Without a holder: copies rank 0's memory for each rank to that rank's. All ranks call
 * it. */
ps_err ps_rank_pieces_scatter(const ps_rank_pieces *p);

#endif
