/* What a rank sends next, and to whom: a pure function of what there is to send and what
 * is on its way.
 *
 * Within a step gradients go before weights: everybody's sums wait for them, and weights
 * that are new earlier would only stand in line at the end. But gradients of the next
 * step go after the weights of this one, because a slower peer still waits for these.
 * Weights of the last bucket go first: the next forward pass needs them first. Peers take
 * turns, and each rank begins with the next rank, so that no two first send to the same
 * one. Only a few segments to one peer are on the way at a time, so that urgent segments
 * do not wait behind megabytes.
 *
 * No lock: its owner has one. */
#ifndef PS_SEND_QUEUE_H
#define PS_SEND_QUEUE_H

#include <stdbool.h>

#include "scatter.h"

typedef struct ps_send {
    int peer;
    bool weights; // of the sender's part, else gradients of the peer's
    int bucket;
    uint64_t segment;
} ps_send;

typedef struct ps_send_peer {
    int rank;
    int on_the_way;    // segments
    uint64_t bucket;   // of the gradients, the next: counted since the start
    uint64_t segment;  // of that bucket
    uint64_t *weights; // (n_buckets) segments sent since the start
} ps_send_peer;

typedef struct ps_send_queue {
    const ps_scatter *scatter; // borrowed
    int rank, most;            // segments on the way to a peer
    int n_peers, turn;
    ps_send_peer *peers; // in the order of their turns
    uint64_t offered;    // buckets whose gradients are final, since the start
    uint64_t *shared;    // (n_buckets) own segments with final weights, since the start
    uint64_t *owed; // (n_buckets) of these, those of the steps before the last offer's
    uint64_t *sent; // (n_peers, n_buckets): the peers' weights
} ps_send_queue;

/* NOMEM; safe for fini then. */
ps_err ps_send_queue_init(ps_send_queue *q, const ps_scatter *scatter, int rank,
                          int most);
void ps_send_queue_fini(ps_send_queue *q);

/* The gradients of the next bucket are final. */
void ps_send_queue_offer(ps_send_queue *q);
/* The weights of the rank's next own segment in a bucket are final. */
void ps_send_queue_share(ps_send_queue *q, int bucket);

/* false: there is nothing to send, or all of it must wait. Otherwise *send counts as on
 * its way. */
bool ps_send_queue_next(ps_send_queue *q, ps_send *send);
/* One segment to the peer has left. */
void ps_send_queue_sent(ps_send_queue *q, int peer);

#endif
