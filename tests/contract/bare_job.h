/* A job of one server (test_job.h) whose workers are members with a bare DEALER socket to
 * its shard. The test writes every frame itself and reads every answer. */
#ifndef PS_TEST_BARE_JOB_H
#define PS_TEST_BARE_JOB_H

#include "chunk_codec.h"
#include "model_spec.h"
#include "test_job.h"
#include "wire_socket.h"

enum { BARE_WORKERS_MAX = 2 };

typedef struct bare_job {
    test_job job;
    int workers;
    ps_plan plan;
    ps_member *member[BARE_WORKERS_MAX];
    const ps_roster *roster;
    void *context;
    void *socket[BARE_WORKERS_MAX]; // with the workers' routing ids
    float *payload;                 // scratch for the largest chunk
} bare_job;

/* SGD with a rate of 0.5, without a codec. */
void bare_open(bare_job *b, int workers);
/* The same with more settings. */
void bare_open_with(bare_job *b, int workers, const char *const *sets, int n_sets);
/* Ends the job, if it has not ended yet. */
void bare_close(bare_job *b);

/* Another connection to the shard; secret NULL: without a secret. monitor: of its
 * connections; may be NULL. */
void *bare_open_socket(bare_job *b, const void *id, size_t bytes, const ps_secret *secret,
                       void **monitor);
/* A chunk of one tensor that the job's codec encodes; *codec is that codec. */
uint32_t bare_coded_chunk(const bare_job *b, ps_chunk_codec *codec);

ps_wire_header bare_header(const bare_job *b, int kind, int rank, uint32_t chunk);
/* payload NULL: sends only the header's frame. */
void bare_send(void *socket, const ps_wire_header *h, const void *payload, size_t bytes);
void bare_send_bytes(void *socket, const void *header_bytes, size_t n,
                     const void *payload, size_t bytes);
/* Sends an INIT or PUSH whose elements all equal value. */
void bare_send_chunk(bare_job *b, int kind, int rank, uint32_t chunk, uint64_t step,
                     float value);

/* Receives the next answer. Its payload, cut or zero-padded to cap bytes, goes to out. */
ps_wire_header bare_answer(void *socket, void *out, size_t cap);

/* Sends HELLO and receives READY. */
void bare_hello(bare_job *b, int rank);
/* Sends every rank's HELLO, and first weights of 1 for every chunk. */
void bare_begin(bare_job *b);

#endif
