/* What worker 0 learns when all workers rest (sync_codec.h), as the coordinator has
 * stored it: the record's lines in pieces, because a stretch may have any number of
 * pushes. */
#ifndef PS_REST_RECORD_H
#define PS_REST_RECORD_H

#include "member.h"
#include "sync_codec.h"

typedef struct ps_rest_record { // zeroed: empty
    ps_sync_rest rest;          // with all lines; it borrows from the rest
    void *value, *lines;        // owned
} ps_rest_record;

/* Waits until the workers rest for the n-th time, from 0 on; the coordinator then forgets
 * the record. The deadline is that of each answer. out is safe for fini in every case. */
ps_err ps_rest_record_fetch(ps_member *member, uint64_t n, uint64_t timeout_ms,
                            ps_rest_record *out);
void ps_rest_record_fini(ps_rest_record *record);

#endif
