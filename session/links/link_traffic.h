/* Messages on the links: which piece is sent next, and where a piece that comes belongs.
 *
 * A message may come before its receiver is there. Its pieces then stay where they are,
 * and the sender waits, unless something else is awaited on the same link, which may
 * stand behind them: only then they are kept in memory. So a program that runs ahead of
 * another does not fill the other's memory.
 *
 * All functions belong to the thread that turns the links, and none blocks. */
#ifndef PS_LINK_TRAFFIC_H
#define PS_LINK_TRAFFIC_H

#include "link.h"

typedef struct ps_flow ps_flow;

/* One message of a transfer, out or in. Filled by the owner, which keeps it until it is
 * over; the last three are the traffic's. */
struct ps_flow {
    void *of;  // the owner's
    bool done; // likewise
    int rank;  // in the job: to or from whom; -1: from any of `ranks` (n_ranks)
    const int *ranks;
    int n_ranks;
    int member; // the owner's
    uint64_t comm, tag;
    uint32_t key;  // with comm and tag: which messages match
    uint32_t call; // of those that match it has to be the same, as the total has
    uint64_t total;
    uint8_t *at; // (total) the bytes; only read where they are sent
    /* Of a message to be sent: how many of its bytes are there. NULL: all. */
    const uint64_t *ready;
    /* Takes what has come, in order, instead of a copy to `at`. May be NULL. */
    void (*take)(ps_flow *f, const uint8_t *bytes, uint32_t n);
    uint64_t moved;  // bytes
    uint64_t number; // of the message, once its first piece is sent
    ps_flow *next;
};

typedef struct ps_traffic_events {
    /* All of it has been sent, or has come. The owner may post others. */
    void (*over)(void *owner, ps_flow *f);
    /* The other worker sends another call's message, or one of another size. */
    void (*refused)(void *owner, ps_flow *f, uint32_t call, uint64_t total);
    /* Something of it has moved. */
    void (*moving)(void *owner, ps_flow *f);
    /* A message of that worker for which nothing waits. Whether nothing ever will: then
     * it is dropped. */
    bool (*unwanted)(void *owner, int rank, const ps_link_head *h);
    void *owner;
} ps_traffic_events;

typedef struct ps_traffic ps_traffic;

/* links (n): by rank, NULL for this worker's own; owned from now on. */
ps_err ps_traffic_create(ps_link **links, int n, const ps_traffic_events *events,
                         ps_traffic **out);
void ps_traffic_destroy(ps_traffic **t);

void ps_traffic_send(ps_traffic *t, ps_flow *f);
void ps_traffic_receive(ps_traffic *t, ps_flow *f);
/* Once all flows of a communicator's call are posted: asks of what has come for it
 * before, and is still there, whether it is unwanted. */
void ps_traffic_look(ps_traffic *t, uint64_t comm, uint64_t tag, uint32_t point_to_point);
/* Sends a message of no bytes in the place of the flow's: its receiver sees which call it
 * is of. NOMEM. */
ps_err ps_traffic_tell(ps_traffic *t, const ps_flow *f);
/* The same for what the owner was to send and of which nothing has gone yet. */
ps_err ps_traffic_tell_unsent(ps_traffic *t, const void *of);
/* Forgets the flows of an owner; what comes for them is dropped. */
void ps_traffic_forget(ps_traffic *t, const void *of);

/* Sends and takes some pieces. *moved: there were any. NET, PROTOCOL, NOMEM. */
ps_err ps_traffic_turn(ps_traffic *t, bool *moved);
/* Whether parts of messages are still to come, to whom they may concern, or words that
 * were told are still to go. */
bool ps_traffic_is_amid(const ps_traffic *t);
/* Before a thread sleeps, or turns the links no more for now. */
ps_err ps_traffic_rest(ps_traffic *t);

#endif
