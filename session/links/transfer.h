/* A transfer: what a member of a communicator has to do in one call, as messages to and
 * from the others. Every collective is one of two kinds.
 *
 *   bytes       to each member some bytes, from each member some bytes
 *   reduction   to each member its slice of this one's values; from each member this
 *               one's slice of its values, which are reduced in rank order, piece by
 *               piece, where they arrive; and then, where all want all slices (gathers),
 *               the result of this slice to each member, and theirs from them
 *
 * Messages of two members match when communicator, stage and number of the call agree
 * (tags of point-to-point messages), in the order in which they were begun. Members whose
 * calls differ get ARG. */
#ifndef PS_TRANSFER_H
#define PS_TRANSFER_H

#include "link.h"
#include "typed_reduce.h"

/* Calls, as messages name them; the numbers are pstrain_call's. */
#define PS_TRANSFER_CALLS(X)                                                             \
    X(SEND, "send")                                                                      \
    X(RECV, "recv")                                                                      \
    X(BARRIER, "barrier")                                                                \
    X(BROADCAST, "broadcast")                                                            \
    X(ALL_GATHER, "all_gather")                                                          \
    X(GATHER, "gather")                                                                  \
    X(SCATTER, "scatter")                                                                \
    X(ALL_TO_ALL, "all_to_all")                                                          \
    X(ALL_REDUCE, "all_reduce")                                                          \
    X(REDUCE, "reduce")                                                                  \
    X(REDUCE_SCATTER, "reduce_scatter")
typedef enum ps_transfer_call {
#define PS_TRANSFER_ENUM(name, text) PS_TRANSFER_##name,
    PS_TRANSFER_CALLS(PS_TRANSFER_ENUM)
#undef PS_TRANSFER_ENUM
        PS_TRANSFER_CALL_COUNT
} ps_transfer_call;

/* Some of the workers, in the order of their ranks in it. */
typedef struct ps_comm_members {
    uint64_t number;        // the same in all of them, and no other's in the job
    int n, self;            // this worker's place
    int *ranks;             // (n) in the job; owned
    uint64_t calls;         // collectives begun so far
    struct ps_calls *begun; // what the links know of them; NULL: nothing yet
} ps_comm_members;

/* With one member. */
typedef struct ps_transfer_part {
    const void *send;
    uint64_t send_bytes;
    void *recv;
    uint64_t recv_bytes;
} ps_transfer_part;

typedef struct ps_transfer_options {
    ps_transfer_call call;
    int root;     // that members have to agree on; 0 where there is none
    int peer;     // of SEND and RECV: the other member; -1: any (RECV)
    uint64_t tag; // of SEND and RECV
    /* (n) by member; (1) for SEND and RECV: with the peer. Of a reduction: send is the
     * member's slice of this one's values; of this one's own part, recv is where the
     * result goes; of another's part, recv is where its result goes (gathers). A barrier
     * has none. */
    const ps_transfer_part *parts; // borrowed during the call; their memory until the end
    bool reduces, gathers;
    ps_dtype dtype;
    ps_reduce_op op;
    uint8_t type_of_bytes; // of calls that do not reduce: members have to agree on it
} ps_transfer_options;

#endif
