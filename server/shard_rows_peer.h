/* What the workers have sent to a shard's rows: messages in pieces, those that wait until
 * they are due, and what the present step has pulled. */
#ifndef PS_SHARD_ROWS_PEER_H
#define PS_SHARD_ROWS_PEER_H

#include "shard_rows_early.h"
#include "wire_socket.h"

enum {
    PS_ROWS_WAITING_MOST = 8, // whole messages of a worker that are not due yet
    PS_ROWS_SPARE_MOST = 32
};

/* A whole message, or one of which pieces are here. Behind a shared PULL_ROWS
 * (rows_body.h) stand its ids. */
typedef struct ps_rows_message {
    int kind; // 0: none
    uint64_t number, step;
    uint8_t *body; // owned
    uint64_t bytes, got, room;
} ps_rows_message;

/* A PULL_ROWS of the step after the present one. */
typedef struct ps_rows_ahead {
    ps_rows_message m;
    ps_rows_early rows;
    bool looked; // what does not change was read
} ps_rows_ahead;

/* What a worker has sent; zero at first. */
typedef struct ps_rows_peer {
    ps_rows_message coming;
    ps_rows_message waiting[PS_ROWS_WAITING_MOST]; // the first ones; in order
    int n_waiting;
    uint64_t handled; // the number of the last message that was
    uint64_t step;    // its present one: the shard's; with asp it may be the next one
    bool begun;       // asp: it saves nothing before that any more
    // Of its present step
    ps_rows_message *pulls; // that train
    uint32_t n_pulls, pulls_room;
    ps_rows_message push; // kind 0: not here
    bool in_place;        // its gradients are in the arena
    // Of the next step, asked for before the present one's push: it pulls no more in
    // this.
    ps_rows_ahead *early;
    uint32_t n_early, early_room;
} ps_rows_peer;

/* Memory for messages to come, of all workers. */
typedef struct ps_rows_spare {
    ps_rows_message of[PS_ROWS_SPARE_MOST];
    int n;
} ps_rows_spare;

void ps_rows_spare_fini(ps_rows_spare *spare);

/* Adds a piece; memory grows with what is here, not with what the worker says. NOMEM. */
ps_err ps_rows_message_add(ps_rows_spare *spare, ps_rows_message *m,
                           const ps_wire_header *h, ps_wire_frames *f);
/* NOMEM. */
ps_err ps_rows_message_room(ps_rows_message *m, uint64_t room);
/* Keeps its memory for another one. */
void ps_rows_message_free(ps_rows_spare *spare, ps_rows_message *m);

/* Its first waiting message counts as handled; the caller frees it. */
ps_rows_message ps_rows_peer_take_first(ps_rows_peer *p);
/* Keeps a PULL_ROWS until its step is applied; its body is taken over. NOMEM. */
ps_err ps_rows_peer_keep_pull(ps_rows_peer *p, ps_rows_message *m);
/* What came with that number; NULL: it did not come ahead. */
ps_rows_ahead *ps_rows_peer_early(const ps_rows_peer *p, uint64_t number);
/* Bodies that were taken over stay. */
void ps_rows_peer_forget_early(ps_rows_spare *spare, ps_rows_peer *p);
/* Its pulls and its push are applied, or broken off. */
void ps_rows_peer_end_step(ps_rows_spare *spare, ps_rows_peer *p);
void ps_rows_peer_fini(ps_rows_spare *spare, ps_rows_peer *p);

#endif
