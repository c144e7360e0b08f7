/* What the policies of sync_policy.h say between processes, as named maps (mp_map.h). A
 * value that is no such map is PROTOCOL, with the name at fault.
 *
 *   the rules      worker 0 to the coordinator
 *   the batches    likewise: the samples of each worker's pushes
 *   an order       the coordinator to the shards
 *   a rest         the coordinator to worker 0
 */
#ifndef PS_SYNC_CODEC_H
#define PS_SYNC_CODEC_H

#include "mp_map.h"
#include "sync_policy.h"

/* batches: (rules->n_workers). n_fragments: sync.fragments. */
void ps_sync_rules_write(ps_mp_writer *w, const ps_sync_rules *rules,
                         uint32_t n_fragments, const uint64_t *batches);
/* batches: (PS_MAX_RANKS), as many as out->n_workers are set. out->script is NULL, and
 * script is the text, without an end, in value. */
ps_err ps_sync_rules_read(const void *value, size_t bytes, ps_sync_rules *out,
                          uint32_t *n_fragments, uint64_t *batches, ps_map_bytes *script);

void ps_sync_batches_write(ps_mp_writer *w, const uint64_t *batches, uint32_t n_workers);
/* batches: (n_workers). */
ps_err ps_sync_batches_read(const void *value, size_t bytes, uint64_t *batches,
                            uint32_t n_workers);

void ps_sync_order_write(ps_mp_writer *w, const ps_sync_order *order);
/* entries: (n_workers), of which out borrows. */
ps_err ps_sync_order_read(const void *value, size_t bytes, ps_sync_entry *entries,
                          uint32_t n_workers, ps_sync_order *out);

/* What worker 0 learns when all workers rest. */
typedef struct ps_sync_rest {
    uint64_t step, version; // where the job stands
    bool over;              // it ends here
    ps_map_bytes figures;   // so far, as a JSON object
    ps_map_bytes lines; // of the record since the last rest; ps_sync_rest_word follows
    uint32_t more; // pieces of the lines that stand elsewhere (ps_job_key_rest_piece)
} ps_sync_rest;

void ps_sync_rest_write(ps_mp_writer *w, const ps_sync_rest *rest);
/* out borrows from value. */
ps_err ps_sync_rest_read(const void *value, size_t bytes, ps_sync_rest *out);

#endif
