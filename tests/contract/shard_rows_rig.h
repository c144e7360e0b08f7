/* A shard of one table, to which a test hands frames without a network. Two workers, a
 * reader and a shard of another server have a socket each, where they hear its answers.
 * The table has two numbers a row, first rows of 1, and SGD with a rate of 1/2: all sums
 * are exact. */
#ifndef PS_TEST_SHARD_ROWS_RIG_H
#define PS_TEST_SHARD_ROWS_RIG_H

#include "model_spec.h"
#include "shard_rows.h"

enum { WORKERS = 2, NONCE = 77, DIM = 2, IDS = 3, OTHER = 1 };

typedef struct shard_rows_rig {
    ps_config config;
    ps_model_spec spec;
    ps_plan plan;
    ps_step_rule rule;
    void *context, *worker[WORKERS], *reader, *other;
    uint8_t reader_id[PS_WIRE_READER_ID_BYTES], other_id[PS_WIRE_ID_BYTES];
    ps_secret secrets[WORKERS], readers, twins;
    ps_shared_mem arena; // worker 1's
    ps_shard shard;
} shard_rows_rig;
extern shard_rows_rig rig;
extern ps_row_spec rig_table;
extern const uint64_t rig_ids[IDS];

/* Opens it; what the shard says then is not logged, since tests break its rules. */
void rig_open(void);
/* The same with a keeper of rows, and with n more settings (3 at most); with a twin as the
 * first shard of two. */
void rig_open_with(ps_rows_keeper *keeper, bool twin, const char *const *set, int n);
void rig_open_of(ps_rows_keeper *keeper, bool buddy);
void rig_close(void);

typedef struct rig_message {
    ps_wire_header h;
    uint8_t body[256] __attribute__((aligned(8)));
    size_t bytes; // of the payload
    bool no_payload;
} rig_message;

rig_message rig_message_of(int kind, uint32_t rank, uint64_t number, uint64_t step,
                           size_t bytes);
rig_message rig_pull(uint32_t rank, uint64_t number, uint64_t step,
                     const uint64_t ids[IDS]);
/* Of the next step. */
rig_message rig_pull_ahead(uint32_t rank, uint64_t number, uint64_t step,
                           const uint64_t ids[IDS]);
/* Of all rows of n_pulls pulls, of which n numbers do not lie in an arena: value. */
rig_message rig_push_of(uint32_t rank, uint64_t number, uint64_t step, uint32_t n_pulls,
                        size_t n, float value);
/* Of one pull. */
rig_message rig_push(uint32_t rank, uint64_t number, uint64_t step, float value);

/* Hands it in from the connection with this id, or from its worker's. Returns what the
 * shard makes of it. */
ps_err rig_hand_in_from(const rig_message *m, const void *id, size_t id_bytes);
ps_err rig_hand_in(const rig_message *m);
/* From its worker's; the shard must take it. */
void rig_send(rig_message m);

#endif
