/* Checks whether a worker of this job may send a frame to this shard, before any byte of
 * the payload is used. Pure functions. */
#ifndef PS_FRAME_CHECK_H
#define PS_FRAME_CHECK_H

#include "chunk_codec.h"
#include "param_groups.h"
#include "plan.h"
#include "wire_socket.h"

typedef struct ps_frame_rules {
    const ps_plan *plan;
    const ps_tensor_table *table;
    const ps_chunk_codec *codec; // how gradients are encoded; NULL: not at all
    uint32_t shard;              // global index
    uint64_t nonce;
    uint32_t epoch;
    uint32_t n_workers;
    const ps_secret *secrets; // the workers', by rank; borrowed
    const ps_secret *readers; // theirs; borrowed; NULL: there are none
    const ps_secret *twins;   // that other servers show; borrowed; NULL: there are none
    int n_groups;             // of parameters; 0: GROUPS are refused
    int n_tables;             // of rows; 0: messages of rows are refused
} ps_frame_rules;

typedef enum ps_frame_class {
    PS_FRAME_GOOD,
    PS_FRAME_STRANGER, // not from a worker: its routing id is unknown, no more is read
    PS_FRAME_STALE,    // of this job, of another member epoch
    PS_FRAME_BAD       // of this job, but wrong
} ps_frame_class;

/* A message as received: the routing id, the frames after it, the second one's size. */
typedef struct ps_frame_view {
    const void *id;
    size_t id_bytes;
    const void *header;
    size_t header_bytes;
    size_t payload_bytes;
    int n_frames; // header and payload: 1 or 2 are legal
} ps_frame_view;

/* *h is the decoded header (zeroed where there is none). For every class but GOOD,
 * ps_err_message() says what is wrong. A good frame of a kind with a chunk names one of
 * this shard's chunks; its payload has exactly the size that codec and plan give. That of
 * a message of rows is a piece of a body; what the body holds is checked when it is here
 * (rows_body.h). */
ps_frame_class ps_frame_check(const ps_frame_rules *rules, const ps_frame_view *v,
                              ps_wire_header *h);

/* Whether the message is a reader's (wire.h), as its routing id says. */
bool ps_frame_is_readers(const ps_frame_rules *rules, const ps_frame_view *v);
/* Its message: PROTOCOL says what is wrong with it. What the body holds is not checked.
 */
ps_err ps_frame_check_reader(const ps_frame_rules *rules, const ps_frame_view *v,
                             ps_wire_header *h);

/* The index of the shard that sends it to its twin, as its routing id says; -1: it is not
 * one's. */
int64_t ps_frame_shard(const ps_frame_rules *rules, const ps_frame_view *v);
/* Its message: PROTOCOL says what is wrong with it. What the body holds is not checked.
 */
ps_err ps_frame_check_twin(const ps_frame_rules *rules, const ps_frame_view *v,
                           ps_wire_header *h);

#endif
